"""How kernels are compiled: TVM's pipeline, with passes of our own before calls are lowered."""

from __future__ import annotations

from typing import Any

from fewtune.tvm_compat.start import tvm

# Its name among TVM's pipelines.
PIPELINE = "fewtune"
_passes: list[Any] = []


def run_last(ours: Any) -> None:
    """Run a pass on every kernel for a CPU; by then nothing simplifies expressions any more."""
    _passes.append(ours)


def _extended() -> Any:
    pipeline, host, device = tvm.tirx.get_tir_pipeline("s_tir")

    def finalize() -> Any:
        return tvm.transform.Sequential([*_passes, host()])

    return pipeline, finalize, device


tvm.tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, _extended)
