"""Latency of untuned TVM, tuned TVM and onnxruntime, side by side, and what starting takes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import fewtune
from fewtune.artifacts import (
    BenchmarkReport,
    CompileReport,
    Conditions,
    Fingerprint,
    Metrics,
    ShapeFunction,
    ShapeLatency,
    ShareReport,
    TuneReport,
    failures_by_cause,
)
from fewtune.benchmark import interleave
from fewtune.benchmark.interleave import disturbance
from fewtune.benchmark.kernels import StepResults, kernel_rows, kernels_csv
from fewtune.benchmark.peers import OPENVINO
from fewtune.benchmark.variants import Builds, Measurements, Variants
from fewtune.deploy.note import read_note
from fewtune.errors import FewtuneError, last_line
from fewtune.machine.peak import Peak
from fewtune.measure.device import device_of
from fewtune.model.import_model import REFERENCE
from fewtune.options import BenchmarkOptions
from fewtune.report import tables
from fewtune.report.tables import tuning_steps
from fewtune.util.files import file_sha256, write_text

MB = 1e6
# A process of its own each: what one has loaded would help the next.
_CHILD = """
import json, os, sys, time
import numpy
runtime, path, threads, inputs = json.loads(sys.argv[1])
arrays = {name: numpy.zeros(shape, dtype) for name, dtype, shape in inputs}
began_s = time.perf_counter()
if runtime == "fewtune":
    from fewtune import InferenceSession, SessionOptions
else:
    from onnxruntime import InferenceSession, SessionOptions
options = SessionOptions()
options.intra_op_num_threads = threads
session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
session.run(None, arrays)
taken_s = time.perf_counter() - began_s
pages = int(open("/proc/self/statm").read().split()[1])
print(json.dumps([taken_s, pages * os.sysconf("SC_PAGE_SIZE")]))
"""
_LIMIT_S = 120


def start_figures(library: Path, onnx: Path, rounds: int) -> dict[str, float]:
    """Start a library and onnxruntime in turns, from a loaded NumPy to the first output.

    Gives medians of several processes by the names of `Metrics`; resident memory is that after the
    first output.

    Parameters
    ----------
    library : Path
    onnx : Path
        The same model for onnxruntime, its shapes bound. Files beside it that begin with its name
        are its weights.
    rounds : int
        Processes of each.
    """
    note = read_note(library)
    inputs = [(each.name, each.dtype, each.shape) for each in note.functions[0].inputs]
    taken: dict[str, list[tuple[float, float]]] = {"fewtune": [], "onnxruntime": []}
    for _ in range(rounds):
        for runtime, path in (("fewtune", library), ("onnxruntime", onnx)):
            taken[runtime].append(_first_output(runtime, str(path), note.threads, inputs))
    ours, theirs = (
        [statistics.median(each) for each in zip(*rows, strict=True)] for rows in taken.values()
    )
    return {
        "library_mb": library.stat().st_size / MB,
        "onnx_mb": sum(each.stat().st_size for each in onnx.parent.glob(f"{onnx.name}*")) / MB,
        "start_s": ours[0],
        "onnxruntime_start_s": theirs[0],
        "resident_mb": ours[1] / MB,
        "onnxruntime_resident_mb": theirs[1] / MB,
    }


def _first_output(runtime: str, path: str, threads: int, inputs: object) -> tuple[float, float]:
    package = str(Path(fewtune.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps([runtime, path, threads, inputs])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise RuntimeError(f"{runtime} could not start {path}: {last}")
    taken_s, resident_bytes = json.loads(done.stdout.splitlines()[-1])
    return float(taken_s), float(resident_bytes)


# Rounds end when the relative standard error of every median is at most this.
_KNOWN_WITHIN = 0.01


def benchmark_model(
    folders: Mapping[str, Path],
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    directory: Path,
    *,
    commit: str | None = None,
    builds: Builds | None = None,
) -> BenchmarkReport:
    """Measure one result and write its report, metrics and kernel table into ``directory``.

    Parameters
    ----------
    folders : mapping of Path
        Of the outputs of earlier steps, by stage.
    fingerprint : Fingerprint
    options : BenchmarkOptions
    directory : Path
    commit : str, optional
        The commit of the code that measures.
    builds : Builds, optional
        What was built while the library was compiled; built here unless given.
    """
    result = StepResults.read(folders)
    library, imported = folders["compile"] / result.compiled.library, folders["import_model"]
    measured, peak = _measured(imported, result, library, fingerprint, options, builds)
    taken = {"rounds": len(measured.samples_s["tuned"]), "copies": measured.copies}
    conditions = Conditions(
        fingerprint=fingerprint,
        trials_per_task=result.tuned.trials_per_task,
        commit=commit,
        peers=measured.peers,
        **(dict(options) | taken),
    )
    report = _report(result, measured, peak, conditions, file_sha256(library))
    functions = result.imported.functions
    if functions and device_of(fingerprint).can.runs_here:
        samples = {functions[0].function: measured.samples_s}
        for each in functions[1:]:
            # Its copies have no name: they are gone before the next shape's are loaded.
            given = (imported, {"tuned": library}, fingerprint, options)
            made = Variants(*given, untuned=False, function=each.function)
            samples[each.function] = made.measured(options.rounds, _KNOWN_WITHIN)
        shapes = [_shape_latency(each, samples[each.function]) for each in functions]
        report = report.model_copy(update={"shapes": shapes})
    starts = options.copies if device_of(fingerprint).can.shared_cores else 0
    started, remark = _started(library, imported / REFERENCE, starts)
    report = report.model_copy(update={"remarks": [*report.remarks, remark]})
    report.write(directory)
    _metrics(result, report).model_copy(update=started).write(directory)
    write_text(directory / "kernels.csv", kernels_csv(report.kernels))
    write_text(directory / "report.md", tables.benchmark_markdown(report))
    return report


def _measured(
    import_directory: Path,
    result: StepResults,
    library: Path,
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    builds: Builds | None,
) -> tuple[Measurements, Peak | None]:
    """The interleaved rounds, and the machine's peak before or after them, the larger."""
    libraries = {"tuned": library}
    if not device_of(fingerprint).can.runs_here:
        variants = Variants(import_directory, libraries, fingerprint, options)
        return variants.measure(options.rounds, _KNOWN_WITHIN), None
    infos = [task.info for task in result.tasks]
    untuned, meter = builds or Builds.of(import_directory, infos, fingerprint)
    variants = Variants(import_directory, libraries, fingerprint, options, untuned=untuned)
    before = meter.measure() if meter else None
    measured = variants.measure(options.rounds, _KNOWN_WITHIN)
    return measured, before.larger(meter.measure()) if before and meter else None


def _shape_latency(shape: ShapeFunction, samples: interleave.Samples) -> ShapeLatency:
    return ShapeLatency(
        function=shape.function,
        shapes=shape.text,
        variants={name: interleave.latency_stats(taken) for name, taken in samples.items()},
        speedup_over_onnxruntime=interleave.ratio_if_measured(samples, "onnxruntime", "tuned"),
    )


def _started(library: Path, onnx: Path, rounds: int) -> tuple[dict[str, float], str]:
    """The figures of starting the library, and a line on them and on the library's size."""
    if not rounds:
        return {}, f"the library has {library.stat().st_size / MB:.3g} MB"
    try:
        found = start_figures(library, onnx, rounds)
    except subprocess.TimeoutExpired as fault:
        return {}, f"starting the library was not measured: it took over {fault.timeout:.0f} s"
    except (FewtuneError, OSError, RuntimeError) as fault:
        return {}, f"starting the library could not be measured: {last_line(fault)}"
    library_mb, onnx_mb, start_s, peers_start_s, resident_mb, peers_mb = found.values()
    return found, (
        f"the library has {library_mb:.3g} MB, the ONNX model {onnx_mb:.3g}; its first output "
        f"comes {start_s:.3g} s after NumPy is loaded (onnxruntime's {peers_start_s:.3g}), with "
        f"{resident_mb:.3g} MB resident (onnxruntime {peers_mb:.3g})"
    )


def _report(
    result: StepResults,
    measured: Measurements,
    peak: Peak | None,
    conditions: Conditions,
    sha256: str,
) -> BenchmarkReport:
    samples, found = measured.samples_s, measured.difference
    tuned, shared, compiled = result.tuned, result.shared, result.compiled
    stats = {name: interleave.latency_stats(taken) for name, taken in samples.items()}
    tuned_ms = stats["tuned"].median_ms
    rows = kernel_rows(result, measured.kernels_s, peak)
    kernels_ms = sum((row.latency_ms or 0.0) * row.weight for row in rows)
    quiets = [measured.quiet] if measured.quiet else []
    searched = sum(row.share for row in rows if row.is_searched and row.share is not None)
    least_ms = peak.least_ms(result.flops, result.byte_flops) if peak else None
    return BenchmarkReport(
        model=result.selection.model,
        strategy=result.selection.strategy,
        variants=stats,
        speedup_over_untuned=interleave.ratio_stats(samples["untuned"], samples["tuned"]),
        speedup_over_onnxruntime=interleave.ratio_if_measured(samples, "onnxruntime", "tuned"),
        speedup_over_openvino=interleave.ratio_if_measured(samples, OPENVINO, "tuned"),
        max_relative_error=max(found.max_relative_error, compiled.max_relative_error),
        kernels=rows,
        outside_tuned_pct=100 * (1 - searched),
        kernels_ms=kernels_ms,
        model_gflops=result.flops / tuned_ms / 1e6,
        peak_gflops=peak.gflops if peak else None,
        peak_pct=100 * least_ms / tuned_ms if least_ms else None,
        steps=tuning_steps(result.tasks, result.predicted, result.selecting_s, tuned, shared),
        failures=failures_by_cause([*tuned.tasks, *shared.tasks, *shared.representatives]),
        remarks=[
            *_remarks(tuned, shared, compiled),
            *(f"left out of the import: {step}" for step in result.imported.left_out),
            *measured.remarks,
            *filter(None, (quiet.remark for quiet in quiets)),
        ],
        disturbed=disturbance(quiets, stats["tuned"], kernels_ms),
        library_sha256=sha256,
        conditions=conditions,
    )


def _metrics(result: StepResults, report: BenchmarkReport) -> Metrics:
    tuned, shared = result.tuned, result.shared
    spent_s = result.predicted.predicting_s + result.selecting_s
    tuning_s = round(spent_s + tuned.tuning_s + shared.sharing_s, 3)
    medians_ms = {name: stats.median_ms for name, stats in report.variants.items()}
    over_onnxruntime, over_openvino = report.speedup_over_onnxruntime, report.speedup_over_openvino
    return Metrics(
        latency_ms=medians_ms["tuned"],
        untuned_latency_ms=medians_ms["untuned"],
        onnxruntime_latency_ms=medians_ms.get("onnxruntime"),
        speedup_over_untuned=report.speedup_over_untuned.median,
        speedup_over_onnxruntime=over_onnxruntime.median if over_onnxruntime else None,
        openvino_latency_ms=medians_ms.get(OPENVINO),
        speedup_over_openvino=over_openvino.median if over_openvino else None,
        tuning_s=tuning_s,
        tuning_stolen_pct=round(100 * (tuned.stolen_s + shared.stolen_s) / max(tuning_s, 1e-3), 1),
        selecting_s=result.selecting_s,
        representative_tuning_s=tuned.tuning_s,
        sharing_s=shared.sharing_s,
        compile_s=result.compiled.compile_s,
        tasks=len(result.tasks),
        representatives=len(result.selection.representatives),
        trials=tuned.trials + shared.trials,
        max_relative_error=report.max_relative_error,
        model_gflops=report.model_gflops,
        peak_gflops=report.peak_gflops,
        peak_pct=report.peak_pct,
        disturbed=1 if report.disturbed else None,
    )


def _remarks(tuned: TuneReport, shared: ShareReport, compiled: CompileReport) -> list[str]:
    """Remarks: tasks that could not be tuned, what sharing did, and what is left out."""
    said = [
        f"{line.task}: {line.status.replace('_', ' ')} {f'({line.note})' if line.note else ''}"
        for line in [*tuned.tasks, *shared.representatives]
        if line.status != "tuned"
    ]
    said += [f"{line.task}: {line.note}" for line in shared.tasks if line.note]
    said.append(shared.note)
    if shared.prediction is not None:
        said += ["schedules are predicted, not measured", shared.prediction.warning]
    if compiled.exceptions_text:
        said.append(f"compiled with exceptions: {compiled.exceptions_text}")
    if compiled.in_place:
        said.append(
            f"{sum(compiled.in_place.values())} concatenations are left out: their parts are "
            "computed in place"
        )
    return [text.strip() for text in said if text]
