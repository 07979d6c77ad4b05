"""The tuning time of a result by step, with each step's gain: a table of its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fewtune.artifacts import PredictReport, ShareReport, TuneReport, TuningStep
from fewtune.util.table import MISSING, Table, number

if TYPE_CHECKING:
    from fewtune.task.extract import Task

PHASES = {
    "search_s": "searching s",
    "build_s": "building s",
    "run_s": "measuring s",
    "check_s": "checking s",
}
_SEARCHED, _SELECTING, _PREDICTING = "search of the selected", "selecting", "predicting"
_RULES = {
    _PREDICTING: "each task takes the schedule that is rated best, or the bank's where that holds "
    "this very task; it is built, and its outputs are compared",
    _SELECTING: "design spaces are compared, and similar tasks clustered",
    _SEARCHED: "batches where the model gains most, until the next one promises less than "
    "tune.least_gain or the trials are spent; before them default schedules are measured",
}


def tuning_steps(
    tasks: list[Task],
    predicted: PredictReport,
    selecting_s: float,
    tuned: TuneReport,
    shared: ShareReport,
) -> list[TuningStep]:
    """Every step of tuning, in order; those that did nothing are left out.

    Parameters
    ----------
    tasks : list of Task
        All tasks of the model.
    predicted : PredictReport
    selecting_s : float
    tuned : TuneReport
    shared : ShareReport
    """
    calls = {task.info.name: task.info.weight for task in tasks}
    gains_ms = [
        calls[line.task] * (line.default_ms - line.best_ms)
        for line in tuned.tasks
        if line.default_ms is not None and line.best_ms is not None
    ]
    first = [
        TuningStep(
            name=name,
            rule=_RULES[name],
            tasks=count,
            trials=0,
            spent_s=spent_s,
            search_s=spent_s,
            build_s=0.0,
            run_s=0.0,
            model_update_s=0.0,
            gained_ms=None,
        )
        for name, count, spent_s in (
            (_PREDICTING, len(predicted.tasks), predicted.predicting_s),
            (_SELECTING, len(calls), selecting_s),
        )
    ]
    searched = TuningStep(
        name=_SEARCHED,
        rule=_RULES[_SEARCHED],
        tasks=len(tuned.tasks),
        trials=tuned.trials,
        spent_s=tuned.tuning_s,
        search_s=tuned.search_s,
        build_s=tuned.build_s,
        run_s=tuned.run_s,
        model_update_s=tuned.model_update_s,
        check_s=tuned.check_s,
        gained_ms=sum(gains_ms) if gains_ms else None,
    )
    return [step for step in (*first, searched, *shared.rounds) if step.spent_s]


def steps_table(steps: Sequence[TuningStep]) -> Table:
    """One row for each step; its time beyond the named phases went to learning and waiting."""
    headings = ["step", "tasks", "trials", "spent s", *PHASES.values(), "gained ms"]
    rows = [
        [
            step.name,
            str(step.tasks),
            str(step.trials) if step.trials else MISSING,
            number(step.spent_s),
            *(number(getattr(step, phase)) for phase in PHASES),
            MISSING if step.gained_ms is None else f"{step.gained_ms:.3f}",
        ]
        for step in steps
    ]
    return Table(headings, rows)


def steps_markdown(steps: Sequence[TuningStep]) -> str:
    """The table with each step's rule; empty if no step is known."""
    if not steps:
        return ""
    rules = "".join(f"- {step.name}: {step.rule}.\n" for step in steps)
    return f"### What tuning time went to\n\n{steps_table(steps).markdown()}\n{rules}\n"
