"""When a task and when a run ends early."""

import pytest

from fewtune.tuning.early_stopping import Patience
from tests.made.sessions import batches, conv, session

pytestmark = pytest.mark.slow


def test_a_task_that_gains_nothing_ends_early(tmp_path):
    made = session(tmp_path / "journal.jsonl", "c", trials_per_task=100, early_stopping_trials=3)
    assert made.run() == "converged"
    # The first batch has nothing before it to gain upon.
    assert made.state.trials == 6
    assert made.state.tasks[conv("c").info.name].report().note == "no 1 % gain in 3 trials"


def test_a_run_that_gains_nothing_ends_early(tmp_path):
    made = session(
        tmp_path / "journal.jsonl", "bc", trials_per_task=30, run_early_stopping_trials=6
    )
    assert made.run() == "converged"
    # Every task had its first batch, and six trials changed nothing.
    assert made.state.trials == 6
    assert set(batches(tmp_path / "journal.jsonl")) == {conv("b").info.name, conv("c").info.name}


def test_a_run_ends_where_nothing_visible_is_to_be_gained(tmp_path):
    # Every candidate takes as long as the default schedule: there is next to nothing to gain.
    patient = session(tmp_path / "all.jsonl", "bc", trials_per_task=12, least_gain=0.0)
    assert patient.run() == "trials"
    assert patient.state.trials == 24
    hasty = session(tmp_path / "some.jsonl", "bc", trials_per_task=12, least_gain=0.9)
    assert hasty.run() == "converged"
    # Both tasks had their first batch: of one that was never tried nothing is known.
    assert [len(state.trials) for state in hasty.state.tasks.values()] == [3, 3]


def test_a_converged_run_stays_so_until_more_patience_is_asked_for(tmp_path):
    path = tmp_path / "journal.jsonl"
    options = {"trials_per_task": 12, "least_gain": 0.9}
    assert session(path, "bc", **options).run() == "converged"
    written = path.read_text()
    assert session(path, "bc", **options).run() == "converged"
    assert path.read_text() == written
    patient = session(path, "bc", **{**options, "least_gain": 0.0})
    assert patient.run() == "trials"
    assert patient.state.trials == 24


def test_a_threshold_is_of_the_whole_model(tmp_path):
    made = session(tmp_path / "journal.jsonl", "bc", least_gain=0.1)
    for state in made.state.tasks.values():
        state.progress.weight, state.progress.best_s = 1, [1.0]
    assert made.patience.is_worth_it(0.2)
    assert not made.patience.is_worth_it(0.19)
    # These two are half of the model: the same seconds are half as large a part of it.
    half = Patience(made.options, made.state, covered=0.5)
    assert not half.is_worth_it(0.39)
    assert half.is_worth_it(0.4)
    first = next(iter(made.state.tasks.values()))
    first.progress.stands_for = 3.0
    assert not half.is_worth_it(0.79)
    assert half.is_worth_it(float("inf"))
