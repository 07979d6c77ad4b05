"""Artifacts of a model's results as the stages have written them, with other figures.

The files in ``tests/data/results`` are of one selective result, and of its comparison with full.
"""

import hashlib
from pathlib import Path

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    CompileReport,
    Conditions,
    Curve,
    Fingerprint,
    ImportReport,
    LatencyStats,
    Metrics,
    ShareReport,
    Spread,
)
from fewtune.deploy.note import Function, Note, tail

DATA = Path(__file__).parents[1] / "data" / "results"
FULL_TUNING_S, FULL_LATENCY_MS = 1000.0, 40.0


def fingerprint(device: str = "Test CPU") -> Fingerprint:
    return Fingerprint.read(DATA).model_copy(update={"device": device})


def conditions(device: str = "Test CPU") -> Conditions:
    found = BenchmarkReport.read(DATA).conditions
    return found.model_copy(update={"fingerprint": fingerprint(device)})


def latency(median_ms: float) -> LatencyStats:
    p10_ms, p90_ms, min_ms = (factor * median_ms for factor in (0.9, 1.1, 0.8))
    return LatencyStats(median_ms=median_ms, p10_ms=p10_ms, p90_ms=p90_ms, min_ms=min_ms, rounds=30)


def benchmark(
    model: str, strategy: str, latency_ms: float = 50.0, device: str = "Test CPU"
) -> BenchmarkReport:
    report = BenchmarkReport.read(DATA)
    figures = {
        "variants": {**report.variants, "tuned": latency(latency_ms)},
        "speedup_over_untuned": Spread(median=8000 / latency_ms, p10=100, p90=200),
        "speedup_over_onnxruntime": Spread(median=45 / latency_ms, p10=0.8, p90=1.2),
    }
    named = {"model": model, "strategy": strategy, "conditions": conditions(device)}
    return report.model_copy(update=named | figures)


def metrics(latency_ms: float = 50.0, tuning_s: float = 250.0) -> Metrics:
    figures = {
        "latency_ms": latency_ms,
        "tuning_s": tuning_s,
        "speedup_over_untuned": 8000 / latency_ms,
        "speedup_over_onnxruntime": 45 / latency_ms,
    }
    return Metrics.read(DATA).model_copy(update=figures)


def comparison(
    model: str, tuning_s: float = 250.0, used: float = 25.0, achieved: float = 80.0
) -> Comparison:
    figures = {
        "model": model,
        "selective_tuning_s": tuning_s,
        "selective_latency_ms": FULL_LATENCY_MS / achieved * 100,
        "used_time_pct": used,
        "achieved_perf_pct": achieved,
        "achieved_perf_p10_pct": achieved - 2,
        "achieved_perf_p90_pct": achieved + 2,
        "speedup_over_onnxruntime": 45.0 / FULL_LATENCY_MS * achieved / 100,
    }
    return Comparison.read(DATA).model_copy(update=figures)


def share_report(model: str = "net", **given: object) -> ShareReport:
    """A sharing that tuned nothing."""
    fields = {"tasks": [], "rounds": [], "trials": 0, "sharing_s": 0.0}
    fields |= {"strategy": "selective", "stopped_by": "nothing_to_tune"}
    return ShareReport(model=model, **{**fields, **given})


def curve() -> Curve:
    return Curve.read(DATA)


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
    return ImportReport.read(DATA).model_copy(update={"model": model})


def compiled(model: str, strategy: str) -> CompileReport:
    return CompileReport.read(DATA).model_copy(update={"model": model, "strategy": strategy})


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
