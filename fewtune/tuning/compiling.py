"""How a scheduled kernel is compiled to be measured, alone or among others in a library."""

from __future__ import annotations

from fewtune.tvm_runtime import tvm


def without_rewrites(module: tvm.IRModule) -> tvm.IRModule:
    """A scheduled module that takes its weights as its schedule lays them out."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)


def argument_shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's buffers, once its weights are laid out."""
    return [tuple(int(extent) for extent in buffer.shape) for buffer in function.params]


def without_checks() -> tvm.transform.PassContext:
    """Within it, no checks of arguments are compiled: a third of the code that LLVM gets."""
    return tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True})
