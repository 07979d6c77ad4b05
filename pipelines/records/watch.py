"""Compares the latest results with the ones before, to see which became slower.

The recorded results of each model, strategy and machine are compared: the latest with the one
before. Versions of software may differ: their effect is what this looks for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from fewtune.artifacts import BenchmarkReport, Fingerprint
from fewtune.errors import InputError, RegressionError
from fewtune.util.table import MISSING, Table, number
from fewtune.util.validation import nearest
from pipelines.dvc_repo.dag import Result
from pipelines.records.conditions import changed_settings, is_made_alike, is_same_model
from pipelines.records.noise import Change, Latency, between_runs, changed
from pipelines.records.registry import machine_of
from pipelines.records.regression import Cause, cause_of
from pipelines.records.tracking import MACHINE, Store
from stages.paths import Places

# isort: split
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

# The spread comes from so many runs; older ones ran on a machine in another state.
_MOST_EARLIER = 20


@dataclass(frozen=True)
class Watched:
    """A result, and the records of the same model, strategy and machine.

    Attributes
    ----------
    result : Result
    machine : str
        Processor and threads.
    runs : tuple of Run
        In MLflow, the latest first. Those of another model that had the name before are left out.
    cause : Cause or None
        The likely cause, if it became slower and both reports can be read.
    """

    result: Result
    machine: str
    runs: tuple[Run, ...]
    cause: Cause | None = None

    @property
    def now(self) -> Latency:
        """The latest latency."""
        return latency_of(self.runs[0])

    @property
    def before(self) -> Latency | None:
        """The one before; None for the first of its kind."""
        return latency_of(self.runs[1]) if len(self.runs) > 1 else None

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
    def change(self) -> Change | None:
        """The change of the latency."""
        if self.before is None:
            return None
        between = between_runs([latency_of(run).median_ms for run in self.earlier])
        return changed(self.before, self.now, between)

    @property
    def is_slower(self) -> bool:
        """Whether it became slower by more than the noise."""
        change = self.change
        return change is not None and change.verdict == "slower"

    def line(self) -> str:
        """A regression in one line; empty if there is none."""
        change, before = self.change, self.before
        if change is None or before is None or not self.is_slower:
            return ""
        why = self.cause.text() if self.cause else "the two reports cannot be compared"
        if change.between is None:
            noise = f"noise {100 * change.noise:.1f} %"
        else:
            noise = (
                f"noise {100 * change.noise:.1f} %, {len(self.earlier)} earlier runs apart by "
                f"{100 * change.between:.1f} %"
            )
        return (
            f"{self.result} is {100 * (change.ratio - 1):.1f} % slower "
            f"({number(before.median_ms)} to {number(self.now.median_ms)} ms, {noise}); {why}"
        )


def latency_of(run: Run) -> Latency:
    """The latency that was recorded with a run."""
    figures = run.data.metrics
    return Latency(
        figures["latency_ms"],
        figures["latency_p10_ms"],
        figures["latency_p90_ms"],
        figures.get("onnxruntime_latency_ms"),
        run.data.params.get("machine.versions.onnxruntime", ""),
    )


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
        if (
            machine is None
            or here not in (None, machine)
            or (models and tags["model"] not in models)
        ):
            continue
        groups.setdefault((Result(tags["model"], tags["strategy"]), machine), []).append(run)
    if not groups:
        raise InputError(
            f"no result of this machine is recorded in MLflow yet ({store.uri}): `fewtune run` "
            "records its results"
        )
    found = []
    for (result, _), runs in sorted(groups.items(), key=lambda each: each[0]):
        last = runs[0].data
        alike = tuple(run for run in runs if is_same_model(run.data.params, last.params))
        each = Watched(result, last.tags.get("machine", ""), alike)
        if each.is_slower:
            now, before = (_report(store, run) for run in alike[:2])
            if now is not None and before is not None:
                settings = changed_settings(alike[1].data.params, last.params)
                each = replace(each, cause=cause_of(before, now, settings))
        found.append(each)
    return found


def watch_table(watched: Iterable[Watched]) -> Table:
    """One row for each result: the latest figures and those before, with the noise of both.

    A machine is named if there are several.
    """
    watched = list(watched)
    several = len({each.machine for each in watched}) > 1
    headings = [
        "model",
        "strategy",
        *(["machine"] if several else []),
        "before ms [p10 - p90]",
        "now ms [p10 - p90]",
        "change %",
        "noise %",
        "runs apart %",
        "x over onnxruntime before",
        "now",
        "tuning s before",
        "now",
        "verdict",
    ]
    rows = []
    for each in watched:
        change = each.change
        last = each.runs[1] if len(each.runs) > 1 else None
        rows.append(
            [
                each.result.model,
                each.result.strategy,
                *([each.machine] if several else []),
                MISSING if each.before is None else _shown(each.before),
                _shown(each.now),
                MISSING if change is None else f"{100 * (change.ratio - 1):+.1f}",
                MISSING if change is None else f"{100 * change.noise:.1f}",
                MISSING
                if change is None or change.between is None
                else f"{100 * change.between:.1f}",
                number(last.data.metrics.get("times_onnxruntime")) if last else MISSING,
                number(each.runs[0].data.metrics.get("times_onnxruntime")),
                number(last.data.metrics.get("tuning_s")) if last else MISSING,
                number(each.runs[0].data.metrics.get("tuning_s")),
                _VERDICTS[change.verdict if change else "first"],
            ]
        )
    left = {0, 1, len(headings) - 1} | ({2} if several else set())
    return Table(headings, rows, left=frozenset(left))


_VERDICTS = {
    "slower": "SLOWER",
    "faster": "faster",
    "same": "within the noise",
    "machine": "as onnxruntime: the machine",
    "first": "the first of its kind",
}


def raise_if_slower(watched: Sequence[Watched]) -> None:
    """Raise for results that became slower.

    Raises
    ------
    RegressionError
        With a line about each.
    """
    lines = [each.line() for each in watched if each.is_slower]
    if lines:
        raise RegressionError(" | ".join(lines))


def _shown(latency: Latency) -> str:
    return f"{number(latency.median_ms)} [{number(latency.p10_ms)} - {number(latency.p90_ms)}]"


def _this_machine(root: Path) -> str | None:
    """The machine that the results on disk were made on, if there are any."""
    try:
        return machine_of(Fingerprint.read(Places(root).fingerprint))
    except InputError:
        return None


def _report(store: Store, run: Run) -> BenchmarkReport | None:
    """The benchmark that was recorded with a run; None if this version cannot read it."""
    path = f"{Places().benchmarked('', '').name}/{BenchmarkReport.file_name}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            local = store.client.download_artifacts(run.info.run_id, path, folder)
            content = json.loads(Path(local).read_text())
    except (MlflowException, OSError, ValueError):
        return None
    # Another version may have written more than this one knows.
    known = {name: content[name] for name in BenchmarkReport.model_fields if name in content}
    try:
        return BenchmarkReport.model_validate(known)
    except ValidationError:
        return None
