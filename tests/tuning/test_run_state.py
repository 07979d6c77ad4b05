"""What a run knows of its tasks, by trials made by hand."""

import json

import pytest

from fewtune.errors import JournalError
from fewtune.trial.trial import Trial
from fewtune.tuning.final import Final
from fewtune.tuning.state import RunState, Start, TaskState
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny
from tests.made.tasks import made_task, trial


def state_of(
    *trials: Trial, default: Trial | None = None, finals_s: dict[str, float] | None = None
) -> TaskState:
    state = TaskState(made_task("conv"))
    for each in trials:
        state.add(each)
    if default is not None:
        state.default_key, state.known[default.key] = default.key, default
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
    assert state.current_s == 1.0


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
    state.finished = "no 1 % gain in 2 trials"
    line = state.report()
    assert (line.task, line.status, line.trials) == ("conv", "tuned", 2)
    assert (line.best_ms, line.default_ms) == (1250.0, 2250.0)
    assert line.failures == {"build_error": 1}
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


def of_round(name: str, elapsed_s: float, final: Final, *trials: Trial) -> dict:
    phases = {"search_s": 1.0, "build_s": 2.0, "run_s": 3.0, "model_update_s": 4.0}
    return {
        "kind": "round",
        "round": "alone",
        "elapsed_s": elapsed_s,
        "finals": {name: final._asdict()},
        "defaults": {name: DEFAULT.key},
        "by_task": {name: [each.as_json() for each in trials]},
        "donors": {name: [None] * len(trials)},
        "rest_s": 0.0,
        "phases": phases,
    }


def test_a_run_is_rebuilt_from_its_events():
    events = [
        {"kind": "start", "task": "a"},
        of_round("b", 2, Final.of([DEFAULT.key, SLOW.key], [[[4.0], [5.0]]]), SLOW),
        of_round("a", 13, Final.of([DEFAULT.key, FAST.key], [[[6.0], [3.0]]]), FAST, FAILED),
        {"kind": "crash", "task": "a", "signal": "SIGSEGV"},
        {"kind": "finish", "elapsed_s": 14, "stopped_by": "converged"},
    ]
    run = RunState([made_task("a", weight=3), made_task("b")], {}, events)
    assert (run.trials, run.elapsed_s, run.stopped_by) == (3, 14, "converged")
    assert run.phases.total_s() == 20.0
    state = run.tasks["a"]
    assert (state.crashed, state.finished, state.current_s) == ("SIGSEGV", "crashed", 1.0)
    assert set(state.known) == {'["fast"]', '["failed"]', DEFAULT.key}
    assert state.report().default_ms == 2000.0
    # 3 * 1 s + 4 s, once both are known.
    points = [(p.elapsed_s, p.trials, p.estimated_latency_ms) for p in run.curve]
    assert points == [(13, 3, 7_000.0)]
    (held,) = run.rounds.values()
    assert (held.tasks, held.trials, held.spent_s) == (1, 2, 20.0)


def test_a_run_goes_on_from_an_earlier_one():
    run = RunState(
        [made_task("a"), made_task("b")],
        {"a": Start(trials=[SLOW, DEFAULT], default_key=DEFAULT.key)},
    )
    state = run.tasks["a"]
    assert (run.trials, state.current_s) == (0, DEFAULT.outcome.median_s)
    assert run.estimated_latency_s is None
    run.take(of_round("a", 1, Final.of([DEFAULT.key, FAST.key], [[[2.0], [1.0]]]), FAST))
    assert (run.trials, state.report().trials) == (1, 1)
    assert names(state.published()) == ["fast", "default", "slow"]


def test_slow_candidates_that_nobody_checked_are_published_behind_all_others():
    slow = Trial('["unchecked"]', [1.9], None, is_checked=False)
    near = Trial('["near"]', [1.1], None, is_checked=False)
    state = state_of(FAST, slow, near, default=DEFAULT)
    assert names(state.ranked()) == ["fast", "default"]
    assert names(state.published()) == ["fast", "default", "unchecked"]
    assert state_of(slow).published() == []


@pytest.mark.parametrize("changed", [{"finals": 5}, {"elapsed_s": "x"}, {"defaults": {"a": 3}}])
def test_a_journal_that_was_changed_is_refused_in_a_sentence(tmp_path, changed):
    job = tuned_tiny.job_of(TuneJob, [made_task("a")], tmp_path, tuned_tiny.OPTIONS)
    event = of_round("a", 1, Final.of([DEFAULT.key], [[[2.0]]]))
    with pytest.raises(JournalError, match=r"is not as it was written \(.*move it away"):
        job.state([event | changed])
