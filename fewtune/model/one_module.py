"""Joins the lowered modules of one model's shapes: a function each, kernels and weights once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import tvm_ffi

from fewtune.artifacts import MAIN
from fewtune.runtime.tvm import relax, tvm
from fewtune.task.analysis import calls_by_function


def one_module(modules: Sequence[tvm.IRModule]) -> tuple[tvm.IRModule, list[dict[str, str]]]:
    """Join modules of the same model.

    Parameters
    ----------
    modules : sequence of IRModule
        Each with a function ``main`` that calls kernels.

    Returns
    -------
    joined : IRModule
        Functions ``main``, ``main_1``, ``main_2`` and so on, in the order of the modules.
    names : list of dict of str
        By module: the joined module's name of each of its kernels.
    """
    # A call needs its kernel's type, which a builder knows.
    builder = relax.BlockBuilder(tvm.IRModule({}, attrs=modules[0].attrs))
    taken: dict[str, tvm.ir.GlobalVar] = {}
    by_structure: dict[int, list[str]] = {}
    weights: dict[tuple[str, str, str], Any] = {}
    names: list[dict[str, str]] = []
    for number, module in enumerate(modules):
        # Two kernels of one module stay two, since values inside are known by a kernel's calls.
        renamed: dict[str, str] = {}
        for symbol, function in module.functions_items():
            if not isinstance(function, tvm.tirx.PrimFunc):
                continue
            plain = function.without_attr("global_symbol") if function.attrs else function
            equal = by_structure.setdefault(tvm_ffi.structural_hash(plain), [])
            name = next((each for each in equal if each not in renamed.values()), None)
            if name is None:
                name = symbol.name_hint
                while name in taken:
                    name = f"{name}_s{number}"
                equal.append(name)
                taken[name] = builder.add_func(_named(function, name), name)
            renamed[symbol.name_hint] = name
        calling = _Calling({old: taken[new] for old, new in renamed.items()}, weights)
        name = MAIN if number == 0 else f"{MAIN}_{number}"
        builder.add_func(_named(calling.visit_expr(module[MAIN]), name), name)
        names.append(renamed)
    return builder.get(), names


def largest_alone(lowered: tvm.IRModule) -> tvm.IRModule:
    """The largest shape's function of a joined module, and the kernels that it calls."""
    called = {MAIN, *calls_by_function(lowered)[MAIN]}
    kept = {v: function for v, function in lowered.functions_items() if v.name_hint in called}
    return tvm.IRModule(kept, attrs=lowered.attrs)


def _named(function: tvm.ir.BaseFunc, name: str) -> tvm.ir.BaseFunc:
    is_named = function.attrs and "global_symbol" in function.attrs
    return function.with_attr("global_symbol", name) if is_named else function


@relax.expr_functor.mutator
class _Calling(relax.PyExprMutator):
    """Calls the joined module's kernels, with each weight once."""

    def __init__(
        self,
        kernels: dict[str, tvm.ir.GlobalVar],
        weights: dict[tuple[str, str, str], Any],
    ) -> None:
        super().__init__()
        self._kernels = kernels
        self._weights = weights

    def visit_global_var_(self, variable: tvm.ir.GlobalVar) -> relax.Expr:
        """The kernel of the joined module."""
        return self._kernels.get(variable.name_hint, variable)

    def visit_generic_const_(self, constant: Any) -> relax.Expr:
        """The first constant of these bytes."""
        value = constant.value.numpy()
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        key = str(constant.value.dtype), str(value.shape), digest
        return self._weights.setdefault(key, constant)
