"""Closing duels: who was fast in the race is measured again, from builds that were kept for it."""

import json

import numpy as np
import pytest

from fewtune.measure.measurer import Measurer, module_specs
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import parallel_axis
from fewtune.search import Proposal
from fewtune.trial.outcome import Built, Failure
from fewtune.trial.trial import Trial
from fewtune.tuning.batch import TaskBatch, measure_together
from fewtune.tuning.remeasure import Duel, measure_duels
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState
from fewtune.workers.pool import MOST_KEPT, Kept, WorkerPool
from tests import tuned_tiny


@pytest.fixture(scope="module")
def pool():
    """Two workers, so that contestants are in different ones."""
    with WorkerPool(tuned_tiny.fingerprint().target, 1, 2) as workers:
        yield workers


def raced(measurer: Measurer, count: int) -> tuple[TaskState, list[Trial]]:
    """A task with a race of a few candidates behind it: its trials, the fastest first."""
    task = tuned_tiny.convolutions()["c"]
    state = RunState([task], [task.info.name]).tasks[task.info.name]
    space, random = SearchSpace(task.mod, tuned_tiny.target()), np.random.default_rng(0)
    made = [space.make(space.random_point(random), seed) for seed in range(1, count + 1)]
    proposals = [Proposal(each.schedule, each.point) for each in made if each.schedule is not None]
    turn = TaskBatch.of(state, proposals)
    (outcomes,) = measure_together(measurer, [turn])
    for proposal, outcome in zip(turn.proposals, outcomes, strict=True):
        state.add(Trial.of(proposal.schedule, outcome))
    return state, state.ranked()


def trace_of(number: int, tiles: list[list[int]] | None = None) -> str:
    """What a key is like: instructions, here a number to tell it, and decisions."""
    return json.dumps([[number], [[place, tile] for place, tile in enumerate(tiles or [])]])


def test_the_fastest_builds_of_each_task_are_kept():
    kept = Kept(most=2)
    for number, time_s in enumerate([3.0, 1.0, 2.0]):
        kept.take("conv", trace_of(number), Built(number % 2, number), time_s)
    kept.take("dense", trace_of(0), Built(0, 7), 9.0)
    assert kept.find("conv", trace_of(0)) is None
    assert kept.find("conv", trace_of(1)) == Built(1, 1)
    assert kept.find("dense", trace_of(1)) is None
    assert (kept.numbers(0), kept.numbers(1)) == ([2, 7], [1])


def test_the_fastest_two_of_another_parting_are_kept_beside_them():
    kept = Kept(most=2)
    rows, columns = [[2, 1, 1, 1], [1, 1, 1, 8]], [[1, 1, 1, 2], [2, 1, 1, 4]]
    builds = [(1.0, columns), (2.0, columns), (5.0, rows), (3.0, columns), (4.0, rows), (6.0, rows)]
    for number, (time_s, tiles) in enumerate(builds):
        kept.take("conv", trace_of(number, tiles), Built(0, number), time_s)
    # Of three by columns and three by rows: the two fastest, and the faster two by rows.
    assert kept.numbers(0) == [0, 1, 2, 4]


@pytest.mark.slow
def test_what_was_kept_is_not_built_again(pool):
    measurer = Measurer(pool)
    state, ranked = raced(measurer, MOST_KEPT + 2)
    workload = state.task.info.workload
    contestants = [pool.kept_build(workload, trial.key) for trial in ranked]
    kept = [each is not None for each in contestants]
    others = [each for each in ranked if parallel_axis(each.key) != parallel_axis(ranked[0].key)][
        :2
    ]
    assert kept == [place < MOST_KEPT or each in others for place, each in enumerate(ranked)]
    before = [handle.builds for handle in pool.handles]
    announced: list[TaskState] = []
    duels = [Duel(state, ranked[:4])]
    (medians_s,) = measure_duels(measurer, tuned_tiny.target(), duels, announced.append)
    assert list(medians_s) == [trial.key for trial in ranked[:4]]
    assert min(medians_s.values()) > 0
    assert announced == [state]
    assert [handle.builds for handle in pool.handles] == before


@pytest.mark.slow
def test_what_was_not_kept_is_built_for_the_duel(pool):
    measurer = Measurer(pool)
    state, ranked = raced(measurer, 6)
    pool.handles[0].kill()
    pool.handles[1].kill()
    assert pool.kept_build(state.task.info.workload, ranked[0].key) is None
    duels = [Duel(state, ranked[:2])]
    (medians_s,) = measure_duels(measurer, tuned_tiny.target(), duels, lambda _: None)
    assert list(medians_s) == [trial.key for trial in ranked[:2]]


@pytest.mark.slow
def test_contestants_of_two_workers_take_turns_until_one_is_lost(pool):
    measurer = Measurer(pool)
    task = tuned_tiny.convolutions()["c"]
    built = measurer.build([task.mod, task.mod])
    assert {each.worker for each in built if isinstance(each, Built)} == {0, 1}
    outcomes = measurer.duel(built, module_specs(task.mod), rounds=3)
    assert [len(outcome.run_s) for outcome in outcomes] == [3, 3]
    # What one of them did not take part in was no duel.
    pool.handles[1].kill()
    outcomes = measurer.duel(built, module_specs(task.mod))
    assert [outcome.run_s for outcome in outcomes] == [None, None]


@pytest.mark.slow
def test_a_contestant_that_could_not_be_built_leaves_the_rest(pool):
    measurer = Measurer(pool)
    task = tuned_tiny.convolutions()["c"]
    (built,) = measurer.build([task.mod])
    wrong = Failure("build_error", "made by hand")
    first, second = measurer.duel([wrong, built], module_specs(task.mod), rounds=2)
    assert (first.cause, first.run_s) == ("build_error", None)
    assert len(second.run_s) == 2
