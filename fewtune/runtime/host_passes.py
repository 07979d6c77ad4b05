"""Passes of our own within TVM's compilation, just before what it calls is lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm  # tvm_runtime registers what is here: it cannot be imported from here


def register(ours: tvm.transform.Pass) -> None:
    """Let TVM's pipelines run a pass on every kernel for a CPU, once in each process.

    By then loops are unrolled and vectorised, and nothing simplifies expressions any more.
    """
    from tvm.tirx import compilation_pipeline

    for name in ("s_tir", "default"):
        theirs = compilation_pipeline.PIPELINE_MAP[name]

        def extended(theirs: Callable[[], Any] = theirs) -> Any:
            pipeline, host, device = theirs()

            def finalize() -> tvm.transform.Pass:
                return tvm.transform.Sequential([ours, host()])

            return pipeline, finalize, device

        compilation_pipeline.PIPELINE_MAP[name] = extended
