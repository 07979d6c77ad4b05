"""End-to-end latency of untuned TVM, tuned TVM and onnxruntime, side by side."""

from __future__ import annotations

import datetime
from pathlib import Path

from fewtune.artifacts import (
    BenchmarkReport,
    CompileReport,
    Conditions,
    Fingerprint,
    ImportReport,
    Metrics,
    Selection,
    ShareReport,
    TuneReport,
    failures_by_cause,
)
from fewtune.benchmark.board import BoardVariants
from fewtune.benchmark.builds import Builds
from fewtune.benchmark.default_kernels import DefaultKernels
from fewtune.benchmark.kernels import kernel_rows, kernels_csv
from fewtune.benchmark.openvino_peer import OPENVINO
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.benchmark.variants import Variants
from fewtune.machine.peak import Peak, PeakMeter
from fewtune.machine.steal_time import stolen_pct
from fewtune.measure import interleave
from fewtune.report import kernel_tables
from fewtune.report.machine_state import core_states
from fewtune.report.time_breakdown import tuning_steps
from fewtune.runtime.sealed_library import read_note
from fewtune.task.extract import Task
from fewtune.util.files import file_sha256, write_text

# Rounds end when the relative standard error of every median is at most this.
_KNOWN_WITHIN = 0.01


def benchmark_model(
    import_directory: Path,
    tasks: list[Task],
    selection: Selection,
    selecting_s: float,
    tuned: TuneReport,
    shared: ShareReport,
    compile_directory: Path,
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
    import_directory : Path
    tasks : list of Task
    selection : Selection
    selecting_s : float
        Seconds that selecting took, a part of the tuning time.
    tuned : TuneReport
    shared : ShareReport
    compile_directory : Path
    fingerprint : Fingerprint
    options : BenchmarkOptions
    directory : Path
    commit : str, optional
        The commit of the code that measures.
    builds : Builds, optional
        What was built while the library was compiled; built here unless given.
    """
    compiled = CompileReport.read(compile_directory)
    on_board = fingerprint.is_board
    libraries = {"tuned": compile_directory / compiled.library}
    read_note(libraries["tuned"])
    variants: Variants | BoardVariants
    with DefaultKernels(
        tasks, selection, compiled.in_place, fingerprint, cold_weights=tuned.cold_weights
    ) as defaults:
        if on_board:
            # A board is held by one session at a time: defaults are compiled after the rounds.
            variants, meter = BoardVariants(import_directory, libraries, fingerprint, options), None
        else:
            defaults.compile()
            infos = [task.info for task in tasks]
            builds = builds or Builds.of(import_directory, infos, fingerprint)
            variants = Variants(
                import_directory,
                libraries,
                fingerprint,
                options,
                untuned=builds.untuned,
                between_cores=builds.hand_over,
            )
            meter, builds = builds.meter, None
        found, options = variants.difference("tuned"), variants.options
        defaults.wait()
        samples, peak = _measured(variants, options.rounds, meter)
        options = options.model_copy(update={"rounds": len(samples["tuned"])})
        hand_over_s = variants.hand_over_s
        peers, peer_remarks = variants.peers, variants.remarks
        del variants, meter
        defaults_ms = defaults.times_ms()
    rows = kernel_rows(tasks, selection, tuned, shared, compiled.in_place, defaults_ms, peak)
    shares = [row.share for row in rows if row.is_searched and row.share is not None]
    stats = {name: interleave.latency_stats(taken) for name, taken in samples.items()}
    flops = sum(task.info.flops * task.info.weight for task in tasks)
    byte_flops = sum(task.info.byte_flops * task.info.weight for task in tasks)
    imported = ImportReport.read(import_directory)
    saved = imported.saved_flops
    over_onnxruntime = interleave.ratio_if_measured(samples, "onnxruntime", "tuned")
    over_openvino = interleave.ratio_if_measured(samples, OPENVINO, "tuned")
    tuned_ms = stats["tuned"].median_ms
    result = BenchmarkReport(
        model=selection.model,
        strategy=selection.strategy,
        variants=stats,
        speedup_over_untuned=interleave.ratio_stats(samples["untuned"], samples["tuned"]),
        speedup_over_onnxruntime=over_onnxruntime,
        speedup_over_openvino=over_openvino,
        allowances=max(found.allowances, compiled.allowances),
        max_error=max(found.max_error, compiled.max_error),
        max_relative_error=max(found.max_relative_error, compiled.max_relative_error),
        kernels=rows,
        # If schedules were predicted, the kernels' times alone are not known.
        tuned_share=sum(shares) if shared.prediction is None else None,
        kernels_ms=sum((row.latency_ms or 0.0) * row.weight for row in rows)
        if shared.prediction is None
        else None,
        model_gflops=flops / tuned_ms / 1e6,
        plain_gflops=(flops + saved) / tuned_ms / 1e6 if saved else None,
        model_byte_gops=byte_flops / tuned_ms / 1e6 if byte_flops else None,
        peak_gflops=peak.gflops if peak else None,
        peak_byte_gops=(peak.byte_gops or None) if peak and byte_flops else None,
        memory_gb_s=peak.memory_gb_s if peak else None,
        core_states=core_states(samples, hand_over_s),
        steps=tuning_steps(tasks, selecting_s, tuned, shared),
        failures=failures_by_cause([*tuned.tasks, *shared.tasks, *shared.representatives]),
        remarks=[
            *_remarks(tuned, shared, compiled),
            *(f"left out of the import: {step}" for step in imported.left_out),
            *peer_remarks,
        ],
        library_sha256=file_sha256(compile_directory / compiled.library),
        conditions=conditions_of(
            fingerprint, options, tuned.trials_per_task, commit=commit, peers=peers
        ),
    )
    tuning_s = round(selecting_s + tuned.tuning_s + shared.sharing_s, 3)
    metrics = Metrics(
        latency_ms=tuned_ms,
        untuned_latency_ms=stats["untuned"].median_ms,
        onnxruntime_latency_ms=stats["onnxruntime"].median_ms if over_onnxruntime else None,
        speedup_over_untuned=result.speedup_over_untuned.median,
        speedup_over_onnxruntime=over_onnxruntime.median if over_onnxruntime else None,
        openvino_latency_ms=stats[OPENVINO].median_ms if OPENVINO in stats else None,
        speedup_over_openvino=over_openvino.median if over_openvino else None,
        tuning_s=tuning_s,
        tuning_stolen_pct=stolen_pct(tuned.stolen_s + shared.stolen_s, tuning_s),
        selecting_s=selecting_s,
        representative_tuning_s=tuned.tuning_s,
        sharing_s=shared.sharing_s,
        compile_s=compiled.compile_s,
        tasks=len(tasks),
        representatives=len(selection.representatives),
        dependents=len(shared.tasks),
        set_aside=len(selection.set_aside),
        trials=tuned.trials + shared.trials,
        max_relative_error=result.max_relative_error,
        model_gflops=result.model_gflops,
        plain_gflops=result.plain_gflops,
        peak_gflops=result.peak_gflops,
        peak_pct=result.peak_pct,
        outside_tuned_pct=result.outside_tuned_pct,
    )
    result.write(directory)
    metrics.write(directory)
    write_text(directory / "kernels.csv", kernels_csv(rows))
    write_text(directory / "report.md", kernel_tables.benchmark_markdown(result))
    return result


def _measured(
    variants: Variants | BoardVariants, rounds: int, meter: PeakMeter | None
) -> tuple[dict[str, list[float]], Peak | None]:
    """The interleaved rounds, and the machine's peak before or after them, the larger."""
    if meter is None:
        return variants.measured(rounds, _KNOWN_WITHIN), None
    before = meter.measure()
    samples = variants.measured(rounds, _KNOWN_WITHIN)
    return samples, before.larger(meter.measure())


def _remarks(tuned: TuneReport, shared: ShareReport, compiled: CompileReport) -> list[str]:
    """Remarks: tasks that could not be tuned, what sharing did, and what is left out."""
    said = [
        f"{line.task}: {line.status.replace('_', ' ')} {f'({line.note})' if line.note else ''}"
        for line in [*tuned.tasks, *shared.representatives]
        if line.status != "tuned"
    ]
    said += [f"{line.task}: {line.note}" for line in shared.tasks if line.note]
    if shared.finals:
        others = sum(line.chosen_rank > 1 for line in shared.finals)
        said.append(
            f"{others} of {len(shared.finals)} contested tasks have the schedule that was the "
            "fastest in the model, not the one that was alone"
        )
    said.append(shared.finals_note)
    if shared.prediction is not None:
        said.append(
            f"schedules are predicted, not measured: {shared.prediction.points} points were rated"
        )
        said.append(shared.prediction.warning)
    if compiled.exceptions_text:
        said.append(f"compiled with exceptions: {compiled.exceptions_text}")
    if compiled.in_place:
        said.append(
            f"{sum(compiled.in_place.values())} concatenations are left out: their parts are "
            "computed in place"
        )
    return [text.strip() for text in said if text]


def conditions_of(
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    trials_per_task: int,
    processes: int = 1,
    commit: str | None = None,
    peers: dict[str, str] | None = None,
) -> Conditions:
    """The conditions of present measurements."""
    now = datetime.datetime.now(datetime.UTC)
    return Conditions(
        fingerprint=fingerprint,
        date=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        commit=commit,
        trials_per_task=trials_per_task,
        rounds=options.rounds,
        copies=options.copies,
        processes=processes,
        seed=options.seed,
        peers=peers or {},
    )
