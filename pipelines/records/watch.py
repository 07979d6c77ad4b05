"""Compares the latest results with the ones before, to see which became slower.

The recorded results of each model, strategy and machine are compared: the latest with the one
before. Versions of software may differ: their effect is what this looks for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fewtune.artifacts import BenchmarkReport, Fingerprint
from fewtune.errors import InputError, RegressionError
from fewtune.pipelines.dvc_repo.dag import Result
from fewtune.pipelines.records.conditions import changes, is_made_alike, is_same_model
from fewtune.pipelines.records.registry import machine_of
from fewtune.pipelines.records.tracking import DISTURBED, MACHINE, Store
from fewtune.report.change import Change, Latency, between_runs, changed
from fewtune.stages.paths import Places
from fewtune.util.table import Table, number
from fewtune.util.validation import nearest

# isort: split
from mlflow.artifacts import load_dict
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

# The spread comes from so many runs; older ones ran on a machine in another state.
_MOST_EARLIER = 20
_MOST_KERNELS = 5
_REPORT = f"benchmark/{BenchmarkReport.file_name}"
_VERDICTS = {
    "slower": "SLOWER",
    "faster": "faster",
    "same": "within the noise",
    "machine": "as onnxruntime",
}


@dataclass(frozen=True)
class Watched:
    """A result, and the records of the same model, strategy and machine.

    Attributes
    ----------
    result : Result
    machine : str
        Processor and threads.
    runs : tuple of Run
        In MLflow, the latest first. Those of another model that had the name before are left out,
        and so are disturbed ones before the latest: they say nothing of a change.
    """

    result: Result
    machine: str
    runs: tuple[Run, ...]

    @property
    def latencies(self) -> list[Latency]:
        """The latencies of all runs, the latest first."""
        return [Latency.of_run(run.data) for run in self.runs]

    @property
    def earlier(self) -> list[Run]:
        """Earlier runs made as the one before the latest, oldest first.

        They have its versions and settings: what other ones change is no noise.
        """
        if len(self.runs) < 2:
            return []
        last = self.runs[1].data
        alike = [
            run
            for run in self.runs[1:]
            if run.data.tags.get("fingerprint") == last.tags.get("fingerprint")
            and is_made_alike(run.data.params, last.params)
        ]
        return alike[:_MOST_EARLIER][::-1]

    @property
    def is_disturbed(self) -> bool:
        """Whether the latest was measured beside other work."""
        return DISTURBED in self.runs[0].data.tags

    @property
    def change(self) -> Change | None:
        """The change of the latency; None for the first of its kind, and if it was disturbed."""
        if len(self.runs) < 2 or self.is_disturbed:
            return None
        now, before = self.latencies[:2]
        between = between_runs([Latency.of_run(run.data).median_ms for run in self.earlier])
        return changed(before, now, between)

    @property
    def verdict(self) -> str:
        """Whether it became slower, in words."""
        if self.is_disturbed:
            return "disturbed"
        return _VERDICTS[self.change.verdict] if self.change else "first of its kind"

    def to_dict(self) -> dict[str, Any]:
        """The latest result beside the one before it, in the order of the table's columns."""
        change, latencies = self.change, self.latencies
        now, figures = latencies[0], self.runs[0].data.metrics
        # Nothing is compared with a disturbed result.
        before = asdict(latencies[1]) if change else {}
        earlier = self.runs[1].data.metrics if change else {}
        between = change.between if change else None
        return {
            "model": self.result.model,
            "strategy": self.result.strategy,
            "before_latency_ms": before.get("median_ms"),
            "latency_ms": now.median_ms,
            "change_pct": 100 * (change.ratio - 1) if change else None,
            "noise_pct": 100 * change.noise if change else None,
            "verdict": self.verdict,
            "machine": self.machine,
            "results": len(self.runs),
            "best_ms": min(latency.median_ms for latency in latencies),
            "before_p10_ms": before.get("p10_ms"),
            "before_p90_ms": before.get("p90_ms"),
            "p10_ms": now.p10_ms,
            "p90_ms": now.p90_ms,
            "runs_apart_pct": None if between is None else 100 * between,
            "before_times_onnxruntime": earlier.get("times_onnxruntime"),
            "times_onnxruntime": figures.get("times_onnxruntime"),
            "before_tuning_s": earlier.get("tuning_s"),
            "tuning_s": figures.get("tuning_s"),
        }

    def line(self) -> str:
        """In one line what became slower by more than the noise; empty if nothing did."""
        change = self.change
        if change is None or change.verdict != "slower":
            return ""
        now, before = self.latencies[:2]
        noise = f"noise {100 * change.noise:.1f} %"
        if change.between is not None:
            apart = f"{len(self.earlier)} earlier runs apart by {100 * change.between:.1f} %"
            noise = f"{noise}, {apart}"
        slower = ", ".join(_slower_kernels(self.runs, change.noise))
        why = ", ".join(changes(self.runs[1].data, self.runs[0].data))
        return (
            f"{self.result} is {100 * (change.ratio - 1):.1f} % slower "
            f"({number(before.median_ms)} to {number(now.median_ms)} ms, {noise}); "
            + (f"changed: {why}" if why else "no version or setting changed")
            + (f"; slower: {slower}" if slower else "")
        )


def _slower_kernels(runs: Sequence[Run], noise: float) -> list[str]:
    """Kernels of the latest run that lost more than the noise, the largest loss first."""
    try:
        now, before = (
            {row["task"]: row for row in load_dict(f"{run.info.artifact_uri}/{_REPORT}")["kernels"]}
            for run in runs[:2]
        )
        lost = []
        for task in now.keys() & before.keys():
            old, new = before[task]["latency_ms"] or 0.0, now[task]["latency_ms"] or 0.0
            # The importer numbers the kernels of any model alike.
            if before[task]["shapes"] == now[task]["shapes"] and new > old * (1 + noise) > 0:
                loss_ms = now[task]["weight"] * (new - old)
                lost.append((loss_ms, f"{task} {number(old)} to {number(new)} ms"))
    except (MlflowException, OSError, ValueError, KeyError, TypeError):
        return []  # another version's report, or none
    return [text for _, text in sorted(lost, reverse=True)[:_MOST_KERNELS]]


def watch(root: Path, models: Collection[str] | None = None, fleet: bool = False) -> list[Watched]:
    """Compare the latest recorded results with those before them.

    Parameters
    ----------
    root : Path
        The checkout.
    models : collection of str, optional
        Only those.
    fleet : bool
        Whether results of all machines are compared, not only of this one.

    Raises
    ------
    InputError
        If no such result is recorded.
    MachineError
        If MLflow cannot be reached.
    """
    store = Store(root)
    recorded = store.results()
    known = sorted({run.data.tags["model"] for run in recorded})
    for model in models or ():
        if model not in known:
            raise InputError(
                f"{model!r} is not recorded in MLflow{nearest(model, known, 'recorded models')}"
            )
    here = None if fleet else _this_machine(root)
    groups: dict[tuple[Result, str], list[Run]] = {}
    for run in recorded:
        tags = run.data.tags
        machine = tags.get(MACHINE)
        if machine and here in (None, machine) and (not models or tags["model"] in models):
            result = Result(tags["model"], tags["strategy"])
            groups.setdefault((result, machine), []).append(run)
    if not groups:
        raise InputError(
            f"no result of this machine is recorded in MLflow yet ({store.uri}): `fewtune run` "
            "records its results"
        )
    found = []
    for (result, _), runs in sorted(groups.items(), key=lambda each: each[0]):
        last = runs[0].data
        alike = [run for run in runs if is_same_model(run.data.params, last.params)]
        quiet = [run for run in alike[1:] if DISTURBED not in run.data.tags]
        found.append(Watched(result, last.tags.get("machine", ""), (alike[0], *quiet)))
    return found


def _this_machine(root: Path) -> str | None:
    """The machine that the results on disk were made on, if there are any."""
    try:
        return machine_of(Fingerprint.read(Places(root).fingerprint))
    except InputError:
        return None


def watch_table(watched: Iterable[Watched]) -> Table:
    """One row for each result: the latest figures and those before, with the noise of both."""
    rows = [each.to_dict() for each in watched]
    heads = [key.replace("_", " ").replace("pct", "%") for key in rows[0]]
    cells = [[_cell(key, value) for key, value in row.items()] for row in rows]
    return Table(heads, cells, left=frozenset({0, 1, 6, 7}))


def _cell(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:+.1f}" if key == "change_pct" and value is not None else number(value)


def raise_if_slower(watched: Iterable[Watched]) -> None:
    """Raise for results that became slower.

    Raises
    ------
    RegressionError
        With a line about each.
    """
    lines = [line for each in watched if (line := each.line())]
    if lines:
        raise RegressionError(" | ".join(lines))
