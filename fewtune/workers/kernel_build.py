"""How a scheduled kernel is compiled to be measured, alone or among others in a library."""

from __future__ import annotations

from fewtune.runtime.tvm import tvm
from fewtune.schedule.prefetch import prefetched


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as the compiled library has it: weights laid out, and prefetched."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    laid_out = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return prefetched(laid_out, target)


def argument_shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's buffers, once its weights are laid out."""
    return [tuple(int(extent) for extent in buffer.shape) for buffer in function.params]


def without_checks() -> tvm.transform.PassContext:
    """Within it, no checks of arguments are compiled: a third of the code that LLVM gets."""
    return tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True})
