"""Writes a buffer anew, each thread a part of it, as the kernel before does in a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.tvm_runtime import build, flat, tvm

# Elements of a step: a vector of the widest kind.
_STEP = 16


def rewrite_kernel(threads: int) -> tvm.IRModule:
    """Replaces each value of a buffer by what is left of it to one.

    Random numbers between nought and one stay such, call after call, and no other operation would
    do: a compiler leaves out a store that changes nothing. The last few elements are left alone.

    Parameters
    ----------
    threads : int
        Each writes a part of the buffer, the first the first one.

    Returns
    -------
    module : IRModule
        ``main`` takes a float32 buffer, ``(elements,)``.
    """

    @T.prim_func(s_tir=True)
    def main(given: T.handle) -> None:
        elements = T.int64()
        buffer = T.match_buffer(given, (elements,), "float32")
        for thread in T.parallel(threads):
            for step in T.serial(elements // (_STEP * threads)):
                # The place is written out: of a name for it only the last lane would be stored.
                for lane in T.vectorized(_STEP):
                    buffer[(thread * (elements // (_STEP * threads)) + step) * _STEP + lane] = (
                        T.float32(1)
                        - buffer[(thread * (elements // (_STEP * threads)) + step) * _STEP + lane]
                    )

    return tvm.IRModule({"main": main})


def rewriter(target: tvm.target.Target, threads: int) -> Callable[..., None]:
    """What writes the float32 tensors given to it anew, on the machine of a CPU target.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Returns
    -------
    rewrite : callable
        Takes any number of tensors, and writes one after the other.
    """
    main = build(rewrite_kernel(threads), target)["main"]

    def rewrite(*tensors: Any) -> None:
        for tensor in tensors:
            main(flat(tensor))

    return rewrite
