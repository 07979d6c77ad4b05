"""Writes a buffer anew, each thread a part of it, as the kernel before does in a model.

Kernels split the outermost axis of what they write among the threads. Winograd's transforms, before
and after their products, split the tiles, which are the second axis there: `parallel_axis`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.runtime.tvm import build, tvm
from fewtune.task.analysis import PRODUCTS, TILES
from fewtune.tvm_compat.intrinsics import frames_without_source
from fewtune.tvm_compat.tensors import view_of

# Elements of a step: a vector of the widest kind.
_STEP = 16


@frames_without_source()
def rewrite_kernel(threads: int) -> tvm.IRModule:
    """A kernel that replaces each value of a buffer by one minus it.

    Random numbers between zero and one stay in that range, call after call. Writing them back
    unchanged would not do: a compiler leaves out such a store. The last few elements of each slice
    are not written.

    Parameters
    ----------
    threads : int
        Each thread writes a part of every slice, in order.

    Returns
    -------
    module : IRModule
        ``main`` takes a float32 buffer, ``(slices, elements)``.
    """

    @T.prim_func(s_tir=True)
    def main(given: T.handle) -> None:
        slices, elements = T.int64(), T.int64()
        buffer = T.match_buffer(given, (slices, elements), "float32")
        for thread in T.parallel(threads):
            for piece in T.serial(slices):
                for step in T.serial(elements // (_STEP * threads)):
                    # The index is written out: with a name for it only the last lane is stored.
                    for lane in T.vectorized(_STEP):
                        buffer[
                            piece, (thread * (elements // (_STEP * threads)) + step) * _STEP + lane
                        ] = (
                            T.float32(1)
                            - buffer[
                                piece,
                                (thread * (elements // (_STEP * threads)) + step) * _STEP + lane,
                            ]
                        )

    return tvm.IRModule({"main": main})


def parallel_axis(module_json: str) -> int:
    """The axis of a kernel's inputs and outputs that other kernels split among the threads.

    Parameters
    ----------
    module_json : str
        The kernel, scheduled or not; its blocks' names decide.
    """
    # A decomposed reduction has two blocks, each with a suffix to its name.
    return TILES if f'"{PRODUCTS}' in module_json else 0


def sliced(tensor: Any, axis: int) -> Any:
    """A tensor's memory as ``(slices, elements)``: the axes before ``axis``, and the others."""
    extents = [int(extent) for extent in tensor.shape]
    return view_of(tensor, (prod(extents[:axis]), prod(extents[axis:])))


def rewriter(target: tvm.target.Target, threads: int) -> Callable[..., None]:
    """A function that writes float32 tensors anew, on the machine of a CPU target.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Returns
    -------
    rewrite : callable
        Takes any number of tensors, each `sliced`, and writes one after the other.
    """
    main = build(rewrite_kernel(threads), target)["main"]

    def rewrite(*tensors: Any) -> None:
        for tensor in tensors:
            main(tensor)

    return rewrite
