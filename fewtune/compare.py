"""Selective against full tuning of one model, measured in one process."""

from __future__ import annotations

from pathlib import Path

from fewtune import interleave, kernel_report
from fewtune.artifacts import BenchmarkReport, Comparison, CompileReport, Fingerprint, Metrics
from fewtune.benchmark import BenchmarkOptions, Variants, conditions_of
from fewtune.files import write_text


def compare_strategies(
    import_directory: Path,
    compile_directories: dict[str, Path],
    metrics: dict[str, Metrics],
    reports: dict[str, BenchmarkReport],
    fingerprint: Fingerprint,
    options: BenchmarkOptions,
    directory: Path,
) -> Comparison:
    """Measure selective against full tuning of one model in one process.

    Parameters
    ----------
    import_directory : Path
    compile_directories, metrics, reports : dict
        By strategy: ``selective`` and ``full``.
    fingerprint : Fingerprint
    options : BenchmarkOptions
    directory : Path
        Gets ``compare.json`` and ``report.md``.
    """
    libraries = {
        name: folder / CompileReport.read(folder).library
        for name, folder in compile_directories.items()
    }
    variants = Variants(import_directory, libraries, fingerprint, options)
    error = max(variants.relative_error(name) for name in libraries)
    samples = variants.measured(options.rounds)
    stats = {name: interleave.latency_stats(taken) for name, taken in samples.items()}
    over_reference = {
        name: interleave.ratio_stats(samples["onnxruntime"], samples[name]).median
        for name in ("selective", "full")
    }
    selective, full = metrics["selective"], metrics["full"]
    comparison = Comparison(
        model=reports["selective"].model,
        full_tuning_s=full.tuning_s,
        full_latency_ms=stats["full"].median_ms,
        selective_tuning_s=selective.tuning_s,
        selective_latency_ms=stats["selective"].median_ms,
        untuned_latency_ms=stats["untuned"].median_ms,
        onnxruntime_latency_ms=stats["onnxruntime"].median_ms,
        used_time_pct=100 * (selective.tuning_s / full.tuning_s) if full.tuning_s else 100.0,
        **interleave.achieved_pct(samples["full"], samples["selective"]),
        speedup_over_onnxruntime=over_reference["selective"],
        full_speedup_over_onnxruntime=over_reference["full"],
        tasks=selective.tasks,
        representatives=selective.representatives,
        full_trials=full.trials,
        selective_trials=selective.trials,
        max_relative_error=error,
        conditions=conditions_of(
            fingerprint, variants.options, reports["selective"].conditions.trials_per_task
        ),
    )
    comparison.write(directory)
    text = kernel_report.comparison_markdown(comparison, reports["selective"], reports["full"])
    write_text(directory / "report.md", text)
    return comparison
