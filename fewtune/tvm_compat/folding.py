"""Constants folded at little cost: TVM builds a kernel for each, and runs it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm

# `FoldConstant` builds kernels by this function, for any CPU.
_BUILD = "tirx.build"
_LEGALIZE = "FLegalize"


def fold(module: tvm.IRModule) -> tvm.IRModule:
    """Fold constants, as `unoptimized_folding` does.

    Test: tests/tvm_compat/test_folding.py::test_folded_constants_are_the_same_to_the_byte
    """
    with unoptimized_folding():
        return tvm.relax.transform.FoldConstant()(module)


@contextmanager
def unoptimized_folding() -> Iterator[None]:
    """Within the block, ``FoldConstant`` makes few kernels, as quickly as LLVM can.

    Optimizing a kernel takes longer than running it once: with it, ResNet 50 was lowered in 6.4 s,
    without in 3.2 s (an AMD EPYC). It also legalizes every call before it asks whether the call's
    arguments are constants, an eighth of an import's time. TVM has no option for either.
    Test: tests/tvm_compat/test_folding.py::test_kernels_that_fold_constants_are_not_optimized
    """
    build = tvm.get_global_func(_BUILD)
    plain = tvm.target.Target({"kind": "llvm", "opt-level": 0})

    def built(module: tvm.IRModule, _target: tvm.target.Target) -> Any:
        with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            return build(module, plain)

    usual = legalizers()
    tvm.register_global_func(_BUILD, built, override=True)
    for name, legalizer in usual.items():
        _set_legalizer(name, _of_constants(legalizer))
    try:
        yield
    finally:
        tvm.register_global_func(_BUILD, build, override=True)
        for name, legalizer in usual.items():
            _set_legalizer(name, legalizer)


def legalizers() -> dict[str, Callable[..., Any]]:
    """TVM's legalizers by operator.

    Test: tests/tvm_compat/test_folding.py::test_only_calls_of_constants_are_legalized_to_be_folded
    """
    found = {}
    for name in map(str, tvm.ir.Op.list_op_names()):
        usual = tvm.ir.Op.get(name).get_attr(_LEGALIZE) if name.startswith("relax.") else None
        if usual is not None:
            found[name] = usual
    return found


def _set_legalizer(name: str, legalizer: Callable[..., Any]) -> None:
    tvm.ir.Op.get(name).reset_attr(_LEGALIZE)
    tvm.ir.Op.get(name).set_attr(_LEGALIZE, legalizer)


def _of_constants(usual: Callable[..., Any]) -> Callable[..., Any]:
    """A legalizer that leaves a call with other arguments than constants as it is."""

    def legalized(builder: Any, call: Any) -> Any:
        return usual(builder, call) if all(map(_is_known, call.args)) else call

    return legalized


def _is_known(argument: Any) -> bool:
    if isinstance(argument, tvm.relax.Tuple):
        return all(map(_is_known, argument.fields))
    return not isinstance(argument, tvm.relax.Var)
