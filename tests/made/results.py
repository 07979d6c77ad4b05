"""Artifacts of a model's results as the stages would have written them, made by hand."""

import hashlib
from pathlib import Path

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    CompileReport,
    Conditions,
    Curve,
    CurvePoint,
    Fingerprint,
    ImportReport,
    KernelPair,
    KernelRow,
    LatencyStats,
    Metrics,
    ShareReport,
    Spread,
    TensorSpec,
)
from fewtune.deploy.note import Function, Note, tail

FULL_TUNING_S, FULL_LATENCY_MS = 1000.0, 40.0


def fingerprint(device: str = "Test CPU") -> Fingerprint:
    return Fingerprint(
        device=device,
        logical_cores=2,
        memory_gib=24,
        system="Linux x86_64",
        target='{"kind": "llvm", "mcpu": "znver5", "num-cores": 2}',
        threads=2,
        versions={"apache-tvm": "0.27.0", "onnxruntime": "1.31.0", "python": "3.11.7"},
    )


def conditions(device: str = "Test CPU") -> Conditions:
    return Conditions(
        fingerprint=fingerprint(device),
        date="2026-11-21T06:30Z",
        commit="0123abcdef+",
        trials_per_task=64,
        rounds=30,
        seed=0,
    )


def latency(median_ms: float) -> LatencyStats:
    return LatencyStats(
        median_ms=median_ms,
        p10_ms=0.9 * median_ms,
        p90_ms=1.1 * median_ms,
        min_ms=0.8 * median_ms,
        rounds=30,
    )


def benchmark(
    model: str, strategy: str, latency_ms: float = 50.0, device: str = "Test CPU"
) -> BenchmarkReport:
    return BenchmarkReport(
        model=model,
        strategy=strategy,
        variants={
            "untuned": latency(8000.0),
            "tuned": latency(latency_ms),
            "onnxruntime": latency(45.0),
        },
        speedup_over_untuned=Spread(median=8000 / latency_ms, p10=100, p90=200),
        speedup_over_onnxruntime=Spread(median=45 / latency_ms, p10=0.8, p90=1.2),
        max_relative_error=2.5e-6,
        kernels=[
            KernelRow(
                task="pool",
                weight=1,
                latency_ms=0.5,
                share=0.01,
                gflops=None,
                gb_s=4.0,
                schedule="default",
                donor=None,
            ),
            KernelRow(
                task="conv2d_1",
                weight=4,
                latency_ms=1.25,
                share=0.99,
                gflops=180.0,
                gb_s=12.0,
                peak_pct=80.0,
                schedule="shared",
                donor="conv2d",
            ),
        ],
        tuned_share=0.99,
        kernels_ms=5.5,
        model_gflops=150.0,
        peak_gflops=225.0,
        memory_gb_s=20.0,
        conditions=conditions(device),
    )


def metrics(latency_ms: float = 50.0, tuning_s: float = 250.0) -> Metrics:
    return Metrics(
        latency_ms=latency_ms,
        untuned_latency_ms=8000.0,
        onnxruntime_latency_ms=45.0,
        speedup_over_untuned=8000 / latency_ms,
        speedup_over_onnxruntime=45 / latency_ms,
        tuning_s=tuning_s,
        selecting_s=20.0,
        representative_tuning_s=200.0,
        sharing_s=30.0,
        compile_s=10.0,
        tasks=30,
        representatives=5,
        dependents=20,
        set_aside=5,
        trials=320,
        max_relative_error=2.5e-6,
        model_gflops=150.0,
        peak_gflops=225.0,
        peak_pct=100 * 150 / 225,
        outside_tuned_pct=1.0,
    )


def pair(row: KernelRow, selective_ms: float, full_ms: float) -> KernelPair:
    """A kernel in both libraries, with a tenth of a millisecond of spread to either side."""
    lost_ms = row.weight * (selective_ms - full_ms)
    return KernelPair(
        task=row.task,
        calls=row.weight,
        selective_ms=selective_ms,
        full_ms=full_ms,
        lost_ms=lost_ms,
        lost_p10_ms=lost_ms - 0.1,
        lost_p90_ms=lost_ms + 0.1,
    )


def comparison(
    model: str, tuning_s: float = 250.0, used: float = 25.0, achieved: float = 80.0
) -> Comparison:
    return Comparison(
        model=model,
        full_tuning_s=FULL_TUNING_S,
        full_latency_ms=FULL_LATENCY_MS,
        selective_tuning_s=tuning_s,
        selective_latency_ms=FULL_LATENCY_MS / achieved * 100,
        untuned_latency_ms=8000.0,
        onnxruntime_latency_ms=45.0,
        used_time_pct=used,
        achieved_perf_pct=achieved,
        achieved_perf_p10_pct=achieved - 2,
        achieved_perf_p90_pct=achieved + 2,
        speedup_over_onnxruntime=45.0 / FULL_LATENCY_MS * achieved / 100,
        full_speedup_over_onnxruntime=45.0 / FULL_LATENCY_MS,
        tasks=30,
        representatives=5,
        full_trials=1600,
        selective_trials=320,
        max_relative_error=2.5e-6,
        conditions=conditions(),
    )


def share_report(model: str = "net", **given: object) -> ShareReport:
    """A sharing that tuned nothing."""
    fields = {"tasks": [], "rounds": [], "trials": 0, "sharing_s": 0.0}
    fields |= {"strategy": "selective", "stopped_by": "nothing_to_tune"}
    return ShareReport(model=model, **{**fields, **given})


def curve() -> Curve:
    return Curve(
        points=[
            CurvePoint(elapsed_s=seconds, trials=trials, estimated_latency_ms=estimate)
            for seconds, trials, estimate in (
                (1.2, 32, 900.0),
                (1.9, 64, 400.0),
                (30.0, 96, 60.0),
            )
        ]
    )


def write_result(
    directory: Path,
    model: str,
    strategy: str,
    latency_ms: float = 50.0,
    tuning_s: float = 250.0,
    device: str = "Test CPU",
) -> None:
    """Write what the benchmark stage writes into ``directory``."""
    benchmark(model, strategy, latency_ms, device).write(directory)
    metrics(latency_ms, tuning_s).write(directory)
    (directory / "kernels.csv").write_text("task,share\nconv2d_1,0.99\n")
    (directory / "report.md").write_text(f"# {model} {strategy}\n")


def imported(model: str) -> ImportReport:
    return ImportReport(
        model=model,
        source="model.onnx",
        source_sha256="0" * 64,
        opset=17,
        inputs=[TensorSpec(name="image", shape=[1, 3, 8, 8], dtype="float32")],
        outputs=[TensorSpec(name="scores", shape=[1, 10], dtype="float32")],
        parameters=1000,
        nodes=10,
        nodes_simplified=8,
        layout="NHWC",
        layout_note="all",
        transposes=0,
        allowances=0.1,
        max_error=1e-6,
        max_relative_error=2.5e-6,
        notes=[],
    )


def compiled(model: str, strategy: str) -> CompileReport:
    return CompileReport(
        model=model,
        strategy=strategy,
        library="model.so",
        scheduled_from_log=20,
        scheduled_by_default=10,
        unscheduled=[],
        allowances=0.1,
        max_error=1e-6,
        max_relative_error=2.5e-6,
        compile_s=10.0,
    )


def write_library(path: Path) -> None:
    """Write what is, by its note, a library for machines of another kind."""
    content = b"library"
    note = Note(
        sha256=hashlib.sha256(content).hexdigest(),
        model="net",
        model_sha256="0" * 64,
        functions=(Function("main", "main", (), ()),),
        limits={},
        target='{"kind": "llvm"}',
        architecture="another",
        extensions=(),
        threads=2,
        versions={},
        verified={},
    )
    path.write_bytes(content + tail(note))


def lay_ready(root: Path) -> None:
    """Lay results of ``good`` where the steps of the small pipeline take them from."""
    ready = root / "ready" / "good"
    write_result(ready / "selective" / "benchmark", "good", "selective")
    write_result(ready / "full" / "benchmark", "good", "full", 40.0, FULL_TUNING_S)
    comparison("good").write(ready / "compare")


def lay_libraries(root: Path) -> None:
    """Lay what stages of a real pipeline would have made besides."""
    out = root / "out" / "good"
    imported("good").write(out / "import")
    for strategy in ("selective", "full"):
        compiled("good", strategy).write(out / strategy / "compile")
        write_library(out / strategy / "compile" / "model.so")
