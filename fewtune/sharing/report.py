"""Results of sharing, read from its journal: a line a task, the rounds, the curve."""

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
from fewtune.sharing.donor_round import FIRST
from fewtune.sharing.rules import RULES, SharingRules
from fewtune.sharing.session import KNOWN
from fewtune.trial.outcome import Outcome
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState

_DUELS: Literal["duels"] = "duels"
_FINALS: Literal["finals in the model"] = "finals in the model"
_RULES: dict[RoundName, str] = {
    KNOWN: "the bank holds this very task: its best schedule is taken with the time that "
    "it had when the bank's log was made, and not measured again",
    FIRST: "of the most similar donors' schedules, and some drawn by rule, the donor's "
    "best is measured and those that are rated best; tasks below "
    "{doubtful:.0%} of the throughput of the best similar task have their default "
    "schedule measured too",
    _DUELS: "the fastest few of each task that takes enough of the model's time are measured "
    "again, in turns: in its race one may have been lucky. What is gained is what the winner of "
    "the race is slower here than the winner of the duel",
    _FINALS: "of each task that takes much of the model's time, the fastest alone (up to "
    "share_schedules.finals), which part the axis that other kernels part, or one of which does, "
    "take turns in the model; the fastest there is taken, with what the next kernels on its memory "
    "take for its sake",
}


def task_line(known: TaskState, donors: list[str], events: list[dict[str, Any]]) -> SharedTask:
    """The result of one task, read from the journal."""
    name = known.task.info.name
    rounds = [e for e in events if e["kind"] == "batch" and e["task"] == name and "round" in e]
    origins: dict[str, tuple[str | None, int | None]] = {}
    failures: Counter[str] = Counter(known.failures())
    for event in rounds:
        failures.update(event["reasons"])
        for entry, donor, rank in zip(
            event["trials"], event["donors"], event["ranks"], strict=True
        ):
            origins.setdefault(Trial.from_json(entry).key, (donor, rank))
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
        donor, rank = origins[best.key]
        status = "shared" if donor is not None else "drawn"
    return SharedTask(
        task=name,
        donors=donors,
        donor=donor,
        donor_rank=rank,
        status=status,
        offered=sum(event["offered"] for event in rounds),
        valid=sum(1 for trial in known.trials if trial.run_s),
        trials=len(known.trials),
        default_ms=_ms(_time_s(known, default)),
        best_ms=_ms(best.outcome.median_s if best is not None else math.inf),
        failures=dict(sorted(failures.items())),
        note=f"TVM died of {known.crashed}" if known.crashed else "",
    )


def _time_s(known: TaskState, trials: list[Trial]) -> float:
    """Seconds of the fastest of some of a task's trials, by its duel where they were in it."""
    keys = {trial.key for trial in trials}
    return next((t.outcome.median_s for t in known.ranked() if t.key in keys), math.inf)


def _ms(time_s: float) -> float | None:
    return time_s * 1e3 if time_s != math.inf else None


def share_rounds(
    state: RunState, events: list[dict[str, Any]], rules: SharingRules = RULES
) -> list[ShareRound]:
    """What each round cost and gained, in their order."""
    taken = {name for name, known in state.tasks.items() if known.taken is not None}
    held = _held(events)
    duels = [event for event in events if event["kind"] == "finals"]
    names = [
        name
        for name in _RULES
        if (taken or name != KNOWN)
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
        # Where it failed it had no time to be slower by; journals of before do not name it.
        first_s = medians_s.get(event.get("first"))
        if first_s is not None:
            gained_s[_DUELS] += calls * (first_s - min(medians_s.values()))
    for event in events:
        if event["kind"] == "phases":
            # Default schedules belong to what they were measured for.
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
            rule=_RULES[name].format(doubtful=rules.doubtful),
            tasks=len(touched[name]),
            trials=trials[name],
            spent_s=round(spent[name].total_s(), 3),
            **spent[name].as_json(),
            gained_ms=gained_s[name] * 1e3,
        )
        for name in names
    ]


def finals_of(state: RunState, events: list[dict[str, Any]]) -> tuple[list[ModelFinal], str]:
    """How each task's contenders fared in the model, by its name; and why there are none."""
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
    """What the journal says of finals in the model, if there were to be any."""
    return next((event for event in events if event["kind"] == "in_model"), None)


def _steps(state: RunState, events: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Every measured batch, and the seconds that it took off the model's estimated latency.

    So every final, after which a task counts with what its winner took there.
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
    """What each task is counted with before sharing: its default schedule, where that was measured.

    Of a task without it, the first schedule that worked, or that a bank had: nothing is said to be
    saved by that one.
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
    """The best of a batch; infinite where nothing worked."""
    found = [Outcome(entry.get("run_s")).median_s for entry in event["trials"]]
    return min(found, default=math.inf)


def share_curve(
    before: Curve, tuned: TuneReport, state: RunState, events: list[dict[str, Any]]
) -> Curve:
    """The tune stage's curve, carried on through the shared tasks.

    Before sharing, these count with what `_starts` says.
    """
    starts_s = {n: s for n, s in _starts(state, events).items() if s != math.inf}
    rest_ms = sum(
        state.tasks[name].task.info.weight * start_s * 1e3
        for name, start_s in starts_s.items()
        # What was tuned is in the curve, if there is one.
        if not (before.points and state.tasks[name].earlier)
    )
    points = [
        point.model_copy(update={"estimated_latency_ms": point.estimated_latency_ms + rest_ms})
        for point in before.points
    ]
    if not points:
        # Nothing was tuned before: where sharing begins is what there is to begin with.
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
