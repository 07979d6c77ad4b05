"""What sharing cost and gained, read from journals made by hand."""

from pathlib import Path
from typing import Any

import pytest

from fewtune.artifacts import Curve, CurvePoint, TuneReport
from fewtune.sharing.report import share_curve, share_rounds
from fewtune.storage.journal import Journal
from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import PriorResult
from tests.made.tasks import made_task, trace

PHASES = {"search_s": 1.0, "build_s": 0.0, "run_s": 0.0, "model_update_s": 0.0}
TUNED = TuneReport(
    model="made",
    strategy="selective",
    tasks=[],
    trials=16,
    trials_per_task=16,
    tuning_s=10.0,
    search_s=0.0,
    build_s=0.0,
    run_s=0.0,
    model_update_s=0.0,
    stopped_by="trials",
)


def trial(name: str, time_s: float) -> Trial:
    return Trial.from_json({"trace": trace(name), "run_s": [time_s], "checked": True})


def batch(task: str, elapsed_s: float, measured: Trial, **more: Any) -> dict[str, Any]:
    found = {"kind": "batch", "task": task, "elapsed_s": elapsed_s, "phases": PHASES}
    donors = {"donors": [None], "ranks": [None]}
    return {**found, "trials": [measured.as_json()], **donors, **more}


EVENTS = [
    batch("taker", 1.0, trial("shared", 5.0), round="first donors"),
    batch("tuned", 2.0, trial("lucky", 3.0), round="first donors"),
    {
        "kind": "finals",
        "task": "tuned",
        "elapsed_s": 3.0,
        "phases": PHASES,
        # By their traces it comes last.
        "first": trial("lucky", 0.0).key,
        "medians_s": {trial("lucky", 0.0).key: 3.5, trial("known", 0.0).key: 4.5},
    },
]


def journalled(events: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Events as they come back from the disk."""
    path.unlink(missing_ok=True)
    journal = Journal(path, {})
    for event in events:
        journal.append(event)
    journal.close()
    again = Journal(path, {})
    again.close()
    return again.events


def state() -> RunState:
    earlier = {"tuned": PriorResult([trial("known", 4.0)], trial("default", 6.0))}
    made = RunState([made_task("taker", 2), made_task("tuned", 2)], ["taker", "tuned"], earlier)
    made.replay(EVENTS)
    return made


def test_a_duel_gains_what_the_winner_of_the_race_is_slower_in_it(tmp_path):
    path = tmp_path / "journal.jsonl"
    lost = {**EVENTS[-1], "medians_s": {trial("lucky", 0.0).key: 4.5, trial("known", 0.0).key: 4.0}}
    first, duels = share_rounds(state(), journalled([*EVENTS[:-1], lost], path))
    assert (first.name, first.tasks, first.trials) == ("first donors", 2, 2)
    assert (duels.name, duels.tasks, duels.trials) == ("duels", 1, 0)
    assert (first.spent_s, duels.spent_s) == (2.0, 1.0)
    assert (duels.search_s, duels.build_s) == (1.0, 0.0)
    # Of 4 s, twice in the model, the race's lucky winner left 3; of 4.5 in the duel, 4 are left.
    assert (first.gained_ms, duels.gained_ms) == pytest.approx((2000.0, 1000.0))
    assert share_rounds(state(), journalled(EVENTS, path))[-1].gained_ms == 0
    # One that could not be held is paid for all the same.
    unheld = {**lost, "medians_s": {}}
    assert share_rounds(state(), [*EVENTS[:-1], unheld])[-1].gained_ms == 0
    assert [line.name for line in share_rounds(state(), EVENTS[:-1])][-1] == "first donors"


@pytest.mark.parametrize("is_known", [True, False])
def test_the_curve_begins_with_every_task_once(is_known):
    tuned_to = CurvePoint(elapsed_s=10.0, trials=16, estimated_latency_ms=8000.0)
    before = Curve(points=[tuned_to] if is_known else [])
    points = share_curve(before, TUNED, state(), EVENTS).points
    # The taker's 5 s and the representative's 4, of each twice; its lucky batch; its final.
    estimates = [point.estimated_latency_ms for point in points]
    assert estimates == pytest.approx([18_000.0, 18_000.0, 16_000.0, 17_000.0])
    assert [point.elapsed_s for point in points[1:]] == [11.0, 12.0, 13.0]
    assert points[-1].trials == (18 if is_known else 2)
