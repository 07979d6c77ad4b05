"""Results of sharing, read from its journal: a line for each task, the rounds, the curve."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal

from fewtune.artifacts import (
    Curve,
    CurvePoint,
    ModelFinal,
    RoundName,
    SharedTask,
    ShareRound,
    ShareStatus,
    TuneReport,
)
from fewtune.finals.finals import Final
from fewtune.sharing.donor_round import FIRST, OTHER_SHAPES
from fewtune.sharing.job import RULES, SharingRules
from fewtune.sharing.search_round import SEARCHED
from fewtune.sharing.session import KNOWN
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState

_DUELS: Literal["duels"] = "duels"
_FINALS: Literal["finals in the model"] = "finals in the model"
_RULES: dict[RoundName, str] = {
    KNOWN: "the bank holds this very task: its best schedule is taken, with the time of the "
    "bank's log, and not measured again",
    FIRST: "each task measures its donor's best schedule and the candidates that are rated best; "
    "tasks below {doubtful:.0%} of the throughput of the best similar one measure their default "
    "schedule too; tasks that seemed small take part if their default schedule takes "
    "{small_part:.1%} of the model's measured time",
    SEARCHED: "tasks that would save {searched_gain:.1%} of the model's time or more at the "
    "throughput of the fastest task like them are searched, {searched_batch} trials each, and as "
    "many again where that saved {searched_least:.1%}; {searched_patience} batches in a row that "
    "save less end the round",
    _DUELS: "the fastest few of each heavy task are measured again, in turns; gained is what the "
    "winner of the race takes longer here than the winner of the duel",
    _FINALS: "the fastest few of each heavy task (up to share_schedules.finals) take turns in the "
    "model; the fastest there is taken, counting what the kernels after it lose",
    OTHER_SHAPES: "each task of another shape measures the schedule that the largest shape's task "
    "like it has now, moved to its own extents",
}


def task_line(known: TaskState, donors: list[str], events: list[dict[str, Any]]) -> SharedTask:
    """The result of one task, read from the journal."""
    name = known.task.info.name
    rounds = [e for e in events if e["kind"] == "batch" and e["task"] == name and "round" in e]
    origins: dict[str, tuple[str | None, int | None]] = {}
    searched: set[str] = set()
    failures: Counter[str] = Counter(known.failures())
    for event in rounds:
        keys = [Trial.from_json(entry).key for entry in event["trials"]]
        if event["round"] == SEARCHED:
            searched.update(keys)
            continue
        failures.update(event["reasons"])
        for key, donor, rank in zip(keys, event["donors"], event["ranks"], strict=True):
            origins[key] = (donor, rank)
    default = [known.default] if known.default is not None else []
    ranked = known.ranked()
    best = ranked[0] if ranked else None
    donor, rank = None, None
    status: ShareStatus
    if best is not None and known.taken is not None and best.key == known.taken.key:
        donor, rank, status = donors[0], 1, "known"
    elif best is None or (known.default is not None and best.key == known.default.key):
        status = "default"
    else:
        donor, rank = origins.get(best.key, (None, None))
        own: ShareStatus = "searched" if best.key in searched else "drawn"
        status = "shared" if donor is not None else own
    return SharedTask(
        task=name,
        donors=donors,
        donor=donor,
        donor_rank=rank,
        status=status,
        offered=sum(event.get("offered", 0) for event in rounds),
        valid=sum(1 for trial in known.trials if trial.run_s),
        trials=len(known.trials),
        default_ms=_ms(_time_s(known, default)),
        best_ms=_ms(best.outcome.median_s if best is not None else math.inf),
        failures=dict(sorted(failures.items())),
        note=known.crash_note,
    )


def _time_s(known: TaskState, trials: list[Trial]) -> float:
    """Seconds of the fastest of some trials of a task, by its duel if there was one."""
    keys = {trial.key for trial in trials}
    return next((t.outcome.median_s for t in known.ranked() if t.key in keys), math.inf)


def _ms(time_s: float) -> float | None:
    return time_s * 1e3 if time_s != math.inf else None


def share_rounds(
    state: RunState, events: list[dict[str, Any]], rules: SharingRules = RULES
) -> list[ShareRound]:
    """The cost and gain of each round, in order."""
    taken = {name for name, known in state.tasks.items() if known.taken is not None}
    held = _held(events)
    duels = [event for event in events if event["kind"] == "finals"]
    names = [
        name
        for name in _RULES
        if (taken or name != KNOWN)
        and (name not in (SEARCHED, OTHER_SHAPES) or any(e.get("round") == name for e in events))
        and (held is not None or name != _FINALS)
        and (duels or name != _DUELS)
    ]
    spent, gained_s = {name: Phases() for name in names}, dict.fromkeys(names, 0.0)
    trials = dict.fromkeys(names, 0)
    touched: dict[str, set[str]] = {name: set() for name in names}
    for event, saved_s in _steps(state, events):
        if event["kind"] == "finals":
            continue
        name = event["round"]
        spent[name].add(Phases(**event["phases"]))
        trials[name] += len(event.get("trials", []))
        touched[name].add(event["task"])
        gained_s[name] += saved_s
    for event in duels:
        medians_s, calls = event["medians_s"], state.tasks[event["task"]].task.info.weight
        spent[_DUELS].add(Phases(**event["phases"]))
        touched[_DUELS].add(event["task"])
        # The first has no time if it failed; older journals do not name it.
        first_s = medians_s.get(event.get("first"))
        if first_s is not None:
            gained_s[_DUELS] += calls * (first_s - min(medians_s.values()))
    for event in events:
        if event["kind"] == "phases":
            # Default schedules belong to the round that measured them.
            spent[event.get("round", FIRST)].add(Phases(**event["phases"]))
    if taken:
        touched[KNOWN] = taken
    if held is not None:
        spent[_FINALS].add(Phases(**held["phases"]))
        touched[_FINALS] = set(held["finals"])
        gained_s[_FINALS] = sum(final["gain_s"] for final in held["finals"].values())
    return [
        ShareRound(
            name=name,
            rule=_RULES[name].format(**rules.as_json()),
            tasks=len(touched[name]),
            trials=trials[name],
            spent_s=round(spent[name].total_s(), 3),
            **spent[name].as_json(),
            gained_ms=gained_s[name] * 1e3,
        )
        for name in names
    ]


def finals_of(state: RunState, events: list[dict[str, Any]]) -> tuple[list[ModelFinal], str]:
    """The result of each task's finals, by name; and why there were none."""
    held = _held(events)
    if held is None:
        return [], ""
    lines = []
    for name, entry in sorted(held["finals"].items()):
        final, calls = Final(**entry), state.tasks[name].task.info.weight
        lines.append(
            ModelFinal(
                task=name,
                contenders=len(final.keys),
                chosen_rank=final.chosen + 1,
                first_ms=final.time_s(0) * 1e3 / calls,
                chosen_ms=final.time_s(final.chosen) * 1e3 / calls,
                gained_ms=final.gain_s * 1e3,
            )
        )
    return lines, held["note"]


def _held(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The journal's event of finals in the model, if there is one."""
    return next((event for event in events if event["kind"] == "in_model"), None)


def _steps(state: RunState, events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Every batch and every duel, with the seconds that it saved of the estimated latency.

    After a duel a task counts with its winner's time there.
    """
    best_s = _starts(state, events)
    steps = []
    for event in events:
        if event["kind"] == "batch":
            after_s = min(best_s[event["task"]], _fastest_s(event))
        elif event["kind"] == "finals" and event["medians_s"]:
            after_s = min(event["medians_s"].values())
        else:
            continue
        task = event["task"]
        before_s, best_s[task] = best_s[task], after_s
        saved_s = before_s - best_s[task] if before_s != math.inf else 0.0
        steps.append((event, state.tasks[task].task.info.weight * saved_s))
    return steps


def _starts(state: RunState, events: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each task before sharing: those of its default schedule, if measured.

    Otherwise they are those of the first schedule that worked, or of the bank's. These are counted
    as no saving.
    """
    starts_s = {}
    for name, known in state.tasks.items():
        before = [known.default, known.taken, *known.earlier[:1]]
        starts_s[name] = min((t.outcome.median_s for t in before if t), default=math.inf)
    for event in events:
        if event["kind"] == "batch" and starts_s[event["task"]] == math.inf:
            starts_s[event["task"]] = _fastest_s(event)
    return starts_s


def _fastest_s(event: dict[str, Any]) -> float:
    """Seconds of the fastest of a batch; infinite if nothing worked."""
    found = [Outcome(entry.get("run_s")).median_s for entry in event["trials"]]
    return min(found, default=math.inf)


def share_curve(
    before: Curve, tuned: TuneReport, state: RunState, events: list[dict[str, Any]]
) -> Curve:
    """The tune stage's curve, carried on through the shared tasks.

    Before sharing, these count with the times of `_starts`.
    """
    starts_s = {n: s for n, s in _starts(state, events).items() if s != math.inf}
    rest_ms = sum(
        state.tasks[name].task.info.weight * start_s * 1e3
        for name, start_s in starts_s.items()
        # Tuned tasks are in the curve, if there is one.
        if not (before.points and state.tasks[name].earlier)
    )
    points = [
        point.model_copy(update={"estimated_latency_ms": point.estimated_latency_ms + rest_ms})
        for point in before.points
    ]
    if not points:
        # Nothing was tuned: the curve begins where sharing begins.
        points = [CurvePoint(elapsed_s=0.0, trials=0, estimated_latency_ms=rest_ms)]
    trials = points[-1].trials
    estimate_ms = points[-1].estimated_latency_ms
    for event, saved_s in _steps(state, events):
        trials += len(event.get("trials", []))
        estimate_ms -= saved_s * 1e3
        points.append(
            CurvePoint(
                elapsed_s=round(tuned.tuning_s + event["elapsed_s"], 3),
                trials=trials,
                estimated_latency_ms=estimate_ms,
            )
        )
    return Curve(points=points)
