"""A run ends where no visible gain is to be expected."""

import pytest

from tests.made.sessions import session

pytestmark = pytest.mark.slow


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
