"""Flushes a buffer from all caches, by the processor's own instruction.

TVM's function (``cache_flush_cpu_non_first_arg``) uses the older instruction, each of which waits
for the one before: 11 ms for 16 MB, while the measured kernel takes 1 ms. The newer one
(``clflushopt``, Intel SDM) is not ordered: 0.5 ms on two cores. In so short a time the threads of
the pool do not fall asleep; otherwise the kernel would wait for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.runtime.tvm import build, flat, has_feature, tvm
from fewtune.tvm_compat.intrinsics import frames_without_source

_FEATURE = "clflushopt"
# float32 values of a cache line.
_LINE = 16


@frames_without_source()
def flush_kernel(threads: int) -> tvm.IRModule:
    """Flushes every cache line of a buffer, on x86.

    Parameters
    ----------
    threads : int
        Threads flush alternating lines.

    Returns
    -------
    module : IRModule
        ``main`` takes a float32 buffer, ``(elements,)``, of at least one element.
    """

    @T.prim_func(s_tir=True)
    def main(given: T.handle) -> None:
        elements = T.int64()
        buffer = T.match_buffer(given, (elements,), "float32")
        # The last element's line is flushed too: a buffer may begin within a line.
        for thread in T.parallel(threads):
            for step in T.serial(elements // (_LINE * threads) + 2):
                place = T.min((step * threads + thread) * _LINE, elements - 1)
                T.evaluate(
                    T.call_llvm_intrin("void", "llvm.x86.clflushopt", T.address_of(buffer[place]))
                )

    return tvm.IRModule({"main": main})


def flusher(target: tvm.target.Target, threads: int) -> Callable[..., None]:
    """A function that flushes tensors, on the machine of a CPU target.

    Parameters
    ----------
    target : Target
    threads : int
        TVM's pool must have as many.

    Returns
    -------
    flush : callable
        Takes any number of tensors.
    """
    by_tvm = tvm.get_global_func("cache_flush_cpu_non_first_arg")
    main = build(flush_kernel(threads), target)["main"] if has_feature(target, _FEATURE) else None

    def flush(*tensors: Any) -> None:
        for tensor in tensors:
            elements = math.prod(int(extent) for extent in tensor.shape)
            if main is None or str(tensor.dtype) != "float32":
                # TVM's function does not flush its first argument.
                by_tvm(tensor, tensor)
            elif elements:
                main(flat(tensor))

    return flush
