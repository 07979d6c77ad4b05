"""Selective against full tuning of one model, measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from fewtune.artifacts import (
    Comparison,
    CompileReport,
    Conditions,
    Fingerprint,
    Metrics,
)
from fewtune.benchmark import interleave
from fewtune.benchmark.interleave import disturbance
from fewtune.benchmark.peers import OPENVINO
from fewtune.benchmark.variants import Measurements, Variants
from fewtune.options import CompareOptions
from fewtune.process.apart import Job, run_apart
from fewtune.report import tables
from fewtune.report.tables import Result
from fewtune.util.files import file_sha256, write_text


def compare_strategies(
    import_directory: Path,
    results: dict[str, tuple[Path, Result]],
    fingerprint: Fingerprint,
    options: CompareOptions,
    directory: Path,
    *,
    commit: str | None = None,
) -> Comparison:
    """Measure selective against full tuning of one model, in turns in every process.

    Parameters
    ----------
    import_directory : Path
    results : dict of (Path, Result)
        By strategy (``selective`` and ``full``): the folder of its library, and what its benchmark
        wrote.
    fingerprint : Fingerprint
    options : CompareOptions
    directory : Path
        Gets ``compare.json`` and ``report.md``.
    commit : str, optional
        The commit of the code that measures.

    Raises
    ------
    MachineError
        If a process is killed, which happens if memory runs out.
    """
    libraries = {
        name: folder / CompileReport.read(folder).library for name, (folder, _) in results.items()
    }
    measured = [
        run_apart(
            _Measuring(
                imported=import_directory,
                libraries=libraries,
                fingerprint=fingerprint,
                options=options,
                number=number,
            )
        )
        for number in range(options.processes)
    ]
    selective, full = results["selective"][1], results["full"][1]
    taken = {
        "copies": min(each.copies for each in measured),
        "rounds": _rounds_each(options) * options.processes,
    }
    comparison = Comparison(
        model=selective.model,
        **_tuning_figures(selective.metrics, full.metrics),
        **_latency_figures(measured),
        conditions=Conditions(
            fingerprint=fingerprint,
            trials_per_task=selective.benchmark.conditions.trials_per_task,
            commit=commit,
            peers=measured[0].peers,
            **(dict(options) | taken),
        ),
        library_sha256={name: file_sha256(library) for name, library in libraries.items()},
        disturbed=disturbance(
            [each.quiet for each in measured if each.quiet],
            interleave.latency_stats([s for each in measured for s in each.samples_s["selective"]]),
        ),
    )
    comparison.write(directory)
    write_text(directory / "report.md", tables.comparison_markdown(comparison))
    return comparison


def _tuning_figures(selective: Metrics, full: Metrics) -> dict[str, Any]:
    """What tuning took, as fields of `Comparison`."""
    return {
        "full_tuning_s": full.tuning_s,
        "selective_tuning_s": selective.tuning_s,
        "used_time_pct": 100 * (selective.tuning_s / full.tuning_s) if full.tuning_s else 100.0,
        "tasks": selective.tasks,
        "representatives": selective.representatives,
    }


def _latency_figures(measured: Sequence[Measurements]) -> dict[str, Any]:
    """Latencies, their ratios over the rounds of all processes, and the largest difference."""
    every = {
        name: [taken for each in measured for taken in each.samples_s.get(name, [])]
        for name in measured[0].samples_s
    }
    median_ms = {name: interleave.latency_stats(taken).median_ms for name, taken in every.items()}

    def over(peer: str) -> float | None:
        ratio = interleave.ratio_if_measured(every, peer, "selective")
        return ratio.median if ratio else None

    return {
        **{f"{name}_latency_ms": median_ms.get(name) for name in [*median_ms, OPENVINO]},
        **interleave.achieved_pct(every["full"], every["selective"]),
        "speedup_over_onnxruntime": over("onnxruntime"),
        "speedup_over_openvino": over(OPENVINO),
        "max_relative_error": max(each.difference.max_relative_error for each in measured),
    }


_LEAST_ROUNDS = 3


class _Measuring(Job):
    """The rounds of one process: the first process also measures untuned TVM, for scale."""

    shows_output: ClassVar[bool] = True
    # Copies of a library that lie elsewhere in memory are faster or slower.
    is_fresh: ClassVar[bool] = True
    lighter: ClassVar[str] = "lower compare.copies and run again"

    imported: Path
    libraries: dict[str, Path]
    fingerprint: Fingerprint
    options: CompareOptions
    number: int

    def run(self) -> Measurements:
        # A process has its part of the time to wait.
        processes = self.options.processes
        variants = Variants(
            self.imported,
            self.libraries,
            self.fingerprint,
            self.options.model_copy(update={"wait_s": self.options.wait_s / processes}),
            untuned=self.number == 0,
            turned=self.number % 2 == 1,
        )
        return variants.measure(_rounds_each(self.options))


def _rounds_each(options: CompareOptions) -> int:
    """Rounds of one process."""
    return max(_LEAST_ROUNDS, -(-options.rounds // options.processes))
