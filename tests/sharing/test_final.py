"""Which contender wins, and what a run makes of a round."""

import json
from collections import Counter

import pytest

from fewtune.artifacts import PredictedTask
from fewtune.sharing.share import task_line
from fewtune.tuning.final import Final
from fewtune.tuning.state import RunState, Start
from fewtune.workers import model_runner
from tests.made.tasks import made_task, trial


def test_all_contenders_take_turns_in_an_order_by_lot():
    counts = {"one": 1, "three": 3, "four": 4}
    runs = list(model_runner.picks(counts, 24, seed=1))
    assert runs == list(model_runner.picks(counts, 24, seed=1))
    assert runs != list(model_runner.picks(counts, 24, seed=2))
    for name, count in counts.items():
        found = Counter(run[name] for run in runs)
        assert found == dict.fromkeys(range(count), 24 // count)
    # Every contender meets every contender of another task.
    assert len({(run["three"], run["four"]) for run in runs}) > 8


def test_the_chosen_one_is_faster_in_every_process():
    first, second = [[4.0, 4.2, 4.1], [3.0], [3.5]], [[4.0], [4.5], [3.6]]
    # The second is the fastest by far in one process only.
    final = Final.of(["a", "b", "c"], [first, second])
    assert (final.chosen, final.medians_s[0]) == (2, [4.1, 3.0, 3.5])
    assert final.time_s(2) == pytest.approx(3.55)
    # What one chooses is worth in the other: the second loses a half, the third gains 0.6.
    assert final.gain_s == pytest.approx((-0.5 + 0.6) / 2)
    assert Final(**json.loads(json.dumps(final._asdict()))) == final


def test_where_nobody_is_faster_everywhere_the_first_stays():
    assert Final.of(["a", "b"], [[[2.0], [1.0]], [[2.0], [2.1]]]).chosen == 0


def of_round(finals: dict[str, Final], **more: object) -> dict[str, object]:
    found = {name: final._asdict() for name, final in finals.items()}
    rest = {"by_task": {}, "donors": {}, "defaults": {}, "rest_s": 0.0, "phases": {}}
    return {"kind": "round", "round": "in the model", "finals": found, **rest, **more}


def test_what_was_chosen_is_what_tvm_takes():
    run = RunState([made_task("conv", 2)], {})
    state = run.tasks["conv"]
    for each in (trial("fast", 1.0), trial("chosen", 1.1), trial("slow", 1.2), trial("other", 0.5)):
        state.add(each)
    keys = [trial(name, 1.0).key for name in ("fast", "chosen", "slow")]
    run.take(of_round({"conv": Final.of(keys, [[[6.0], [4.0], [8.0]]])}))
    # Of two calls each; what only seemed faster, alone, is left out.
    assert [(t.trace[0], t.run_s) for t in state.published()] == [
        ("chosen", [2.0]),
        ("fast", [3.0]),
        ("slow", [4.0]),
    ]
    assert state.incumbent.trace == ["chosen"]
    assert state.gains == [pytest.approx(1 / 3)]


def test_the_curve_is_the_models_and_counts_what_rounds_gain():
    starts = {"conv": Start(trial("start", 1.0))}
    run = RunState([made_task("conv"), made_task("pool")], starts)
    start, better = trial("start", 1.0).key, trial("better", 1.0)
    entered = {"by_task": {"conv": [better.as_json()]}, "donors": {"conv": [None]}}
    default = {"defaults": {"pool": "[]"}}
    finals = {
        "conv": Final.of([start, better.key], [[[4.0], [3.0]]]),
        "pool": Final.of(["[]"], [[[1.0]]]),
    }
    run.take(of_round(finals, rest_s=5.0, **entered, **default))
    points = [point.estimated_latency_ms for point in run.curve]
    assert points == pytest.approx([10_000.0, 9_000.0])
    # The predicted schedule was measured, so that it can be published.
    assert [t.key for t in run.tasks["conv"].published()] == [better.key, start]
    # The machine is at half its pace now, and nothing is gained.
    later = {"conv": Final.of([better.key], [[[6.0]]]), "pool": Final.of(["[]"], [[[2.0]]])}
    run.take(of_round(later, rest_s=10.0))
    assert run.curve[-1].estimated_latency_ms == pytest.approx(9_000.0)


@pytest.mark.parametrize(("status", "donor"), [("known", "a bank"), ("default", None)])
def test_a_task_that_no_round_measured_is_as_it_was_predicted(status, donor):
    given = {"status": status, "origin": "a bank", "known_ms": 2.0, "spread": 0.0}
    run = RunState([made_task("conv")], {"conv": Start(trial("start", 1.0))})
    line = task_line(run.tasks["conv"], PredictedTask(task="conv", **given))
    assert (line.status, line.donor, line.best_ms) == (status, donor, 2.0)


def test_a_round_of_which_nothing_worked_is_one_without_a_gain():
    run = RunState([made_task("conv")], {})
    failed = trial("failed", cause="build_error")
    entered = {"by_task": {"conv": [failed.as_json()]}, "donors": {"conv": [None]}}
    run.take(of_round({}, **entered))
    assert run.tasks["conv"].gains == [0.0]
    assert run.tasks["conv"].report().failures == {"build_error": 1}
