"""Compiles a scheduled kernel for measuring, alone or among others in a library."""

from __future__ import annotations

from fewtune.runtime.tvm import tvm
from fewtune.schedule.prefetch import prefetched


def as_in_model(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """A scheduled module as in the compiled library: weights laid out and prefetched."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    laid_out = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    return prefetched(laid_out, target)


def argument_shapes(function: tvm.tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Shapes of a function's buffers, once its weights are laid out."""
    return [tuple(int(extent) for extent in buffer.shape) for buffer in function.params]
