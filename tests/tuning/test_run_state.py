"""What a run knows of its tasks, by trials made by hand."""

import json

import pytest

from fewtune.trial.trial import Trial
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import PriorResult, TaskState
from tests.made.tasks import made_task, trial


def state_of(
    *trials: Trial, default: Trial | None = None, finals_s: dict[str, float] | None = None
) -> TaskState:
    state = RunState([made_task("conv")], ["conv"]).tasks["conv"]
    for each in trials:
        state.add(each)
    state.default = default
    state.finals_s = {json.dumps([name]): value for name, value in (finals_s or {}).items()}
    return state


def names(trials: list[Trial]) -> list[str]:
    return [each.trace[0] for each in trials]


SLOW, FAST, TIED = trial("slow", 3.0, 4.0, 5.0), trial("fast", 1.0), trial("tied", 1.0)
FAILED = trial("failed", cause="build_error")
DEFAULT = trial("default", 2.0)
UNCHECKED = Trial("unchecked", [9.0], None, is_checked=False)


def test_valid_trials_and_the_default_are_ranked_by_median():
    state = state_of(SLOW, FAILED, FAST, TIED, default=DEFAULT)
    assert names(state.ranked()) == ["fast", "tied", "default", "slow"]
    assert names(state.published()) == names(state.ranked())
    assert state.best_s == 1.0


def test_the_final_decides_among_the_finalists():
    state = state_of(
        SLOW, FAST, TIED, default=DEFAULT, finals_s={"fast": 2.5, "tied": 1.5, "default": 2.0}
    )
    ranked = state.ranked()
    assert names(ranked) == ["tied", "default", "fast", "slow"]
    assert [each.run_s for each in ranked] == [[1.5], [2.0], [2.5], [4.0]]


def test_what_seems_faster_than_the_winner_outside_the_final_is_not_published():
    # The mean of one, by which TVM ranks records, is below the winner's; its median is not.
    skewed, lucky = trial("skewed", 0.1, 1.6, 1.7), trial("lucky", 1.4)
    state = state_of(FAST, skewed, lucky, finals_s={"fast": 1.5})
    published = state.published()
    assert names(published) == ["fast", "skewed"]
    assert [each.run_s for each in published] == [[1.5], [1.6]]


def test_a_task_without_trials_publishes_its_default_or_nothing():
    assert names(state_of(default=DEFAULT).published()) == ["default"]
    assert state_of(default=trial("default", cause="build_error")).published() == []
    assert state_of(FAILED).published() == []


def test_the_report_gives_milliseconds_and_the_final_figures():
    state = state_of(FAST, FAILED, default=DEFAULT, finals_s={"fast": 1.25, "default": 2.25})
    state.spent_s = 12.34567
    state.progress.finished = "no 1 % gain in 2 trials"
    line = state.report()
    assert (line.task, line.status, line.trials) == ("conv", "tuned", 2)
    assert (line.best_ms, line.default_ms) == (1250.0, 2250.0)
    assert line.failures == {"build_error": 1}
    assert line.tuning_s == 12.346
    assert line.note == "no 1 % gain in 2 trials"


@pytest.mark.parametrize(
    ("trials", "crashed", "status"),
    [
        ([], None, "not_reached"),
        ([FAILED], None, "no_valid_schedule"),
        ([FAST], None, "tuned"),
        ([FAILED, UNCHECKED], None, "slower_than_default"),
        ([FAST], "SIGSEGV", "crashed"),
    ],
)
def test_the_status_says_what_came_of_it(trials, crashed, status):
    state = state_of(*trials, default=DEFAULT)
    state.crashed = crashed
    line = state.report()
    assert line.status == status
    assert line.default_ms == 2000.0
    assert line.best_ms == (1000.0 if trials == [FAST] else 2000.0)
    assert line.note == ("its search crashed (SIGSEGV)" if crashed else "")


def test_a_task_of_which_nothing_ran_has_no_figures():
    line = state_of(FAILED).report()
    assert (line.default_ms, line.best_ms) == (None, None)


def test_a_run_is_rebuilt_from_its_events():
    phases = {"search_s": 1.0, "build_s": 2.0, "run_s": 3.0, "model_update_s": 4.0}
    run = RunState([made_task("a", weight=3), made_task("b")], ["a"])
    run.replay(
        [
            {"kind": "start", "task": "a"},
            {"kind": "default", "task": "a", "elapsed_s": 1, "trial": DEFAULT.as_json()},
            {"kind": "default", "task": "b", "elapsed_s": 2, "trial": SLOW.as_json()},
            {"kind": "phases", "elapsed_s": 3, "phases": phases},
            {
                "kind": "batch",
                "task": "a",
                "elapsed_s": 13,
                "phases": phases,
                "trials": [{**FAST.as_json(), "pace": 1.5}, FAILED.as_json()],
            },
            {"kind": "crash", "task": "a", "signal": "SIGSEGV"},
            {"kind": "finish", "elapsed_s": 14, "stopped_by": "converged"},
        ]
    )
    assert (run.trials, run.resumed_trials, run.elapsed_s) == (2, 2, 14)
    assert run.stopped_by == "converged"
    assert run.phases.total_s() == 20.0
    state = run.tasks["a"]
    assert (state.spent_s, state.progress.best_s, state.progress.trials) == (10.0, [1.0], 2)
    assert (state.crashed, state.progress.finished) == ("SIGSEGV", "crashed")
    assert set(state.known) == {'["fast"]', '["failed"]'}
    # 3 * 2 s + 4 s once both defaults are known; then the best of a is 1 s.
    points = [(p.elapsed_s, p.trials, p.estimated_latency_ms) for p in run.curve]
    assert points == [(2, 0, 10_000.0), (13, 2, 7_000.0)]


def test_a_run_goes_on_from_an_earlier_one():
    earlier = PriorResult([SLOW], DEFAULT)
    run = RunState([made_task("a", weight=3), made_task("b")], ["a"], {"a": earlier})
    state = run.tasks["a"]
    slow_s, default_s = SLOW.outcome.median_s, DEFAULT.outcome.median_s
    assert (run.trials, state.best_s, state.earlier) == (0, slow_s, [SLOW])
    assert (state.progress.best_s, state.progress.default_s) == ([slow_s], default_s)
    assert state.progress.current_s == min(slow_s, default_s)
    assert state.progress.finished is None
    assert set(state.known) == {SLOW.key}
    assert run.estimated_latency_s is None
    run.replay(
        [
            {"kind": "default", "task": "b", "elapsed_s": 1, "trial": SLOW.as_json()},
            {"kind": "batch", "task": "a", "phases": {}, "trials": [FAST.as_json()]},
        ]
    )
    assert (run.trials, state.report().trials) == (1, 1)
    assert state.progress.best_s == [slow_s, FAST.outcome.median_s]
    assert set(names(state.published())) == {"fast", "slow", "default"}
    assert names(state.published())[0] == "fast"


def test_slow_candidates_that_nobody_checked_are_published_behind_all_others():
    slow = Trial('["unchecked"]', [1.9], None, is_checked=False)
    near = Trial('["near"]', [1.1], None, is_checked=False)
    state = state_of(FAST, slow, near, default=DEFAULT)
    assert names(state.ranked()) == ["fast", "default"]
    assert names(state.published()) == ["fast", "default", "unchecked"]
    assert state_of(slow).published() == []
