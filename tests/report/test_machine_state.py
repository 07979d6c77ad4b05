"""Rounds are classified by where the host placed the machine's cores."""

from __future__ import annotations

import pytest

from fewtune.artifacts import CoreState
from fewtune.report.machine_state import core_state_table, core_states, core_states_text
from fewtune.report.tables import comparisons_markdown
from tests.made import results as made

NEAR_S, FAR_S = 9e-6, 31e-6
SAMPLES_S = {
    "untuned": [1.0],
    "selective": [2.5e-3, 2.7e-3, 4.6e-3, 2.6e-3],
    "onnxruntime": [3.6e-3, 3.6e-3, 5.5e-3, 3.6e-3],
}


def found() -> list[CoreState]:
    return core_states(SAMPLES_S, [NEAR_S, 1.1 * NEAR_S, FAR_S, NEAR_S])


def test_medians_of_rounds_of_each_state() -> None:
    near, far = found()
    assert (near.rounds, far.rounds) == (3, 1)
    assert near.hand_over_us == pytest.approx(9.0)
    assert far.hand_over_us == pytest.approx(31.0)
    # What was not in every round is in none.
    assert near.latency_ms == pytest.approx({"selective": 2.6, "onnxruntime": 3.6})
    assert far.latency_ms == pytest.approx({"selective": 4.6, "onnxruntime": 5.5})


def test_cores_that_share_one_are_a_state_of_their_own() -> None:
    states = core_states(SAMPLES_S, [FAR_S, NEAR_S, 0.4 * NEAR_S, 1.3 * NEAR_S])
    assert [state.rounds for state in states] == [1, 2, 1]
    assert states[0].latency_ms["selective"] == pytest.approx(4.6)


def test_rounds_of_one_state() -> None:
    assert core_states(SAMPLES_S, []) == []
    (state,) = core_states(SAMPLES_S, [NEAR_S] * 4)
    assert core_states_text([state]) == "in 9.00 us in all rounds"


def test_a_comparison_tells_what_the_host_did() -> None:
    assert core_states_text(found()) == (
        "in 9.00 us in 3 of 4 rounds (selective 2.60 ms, onnxruntime 3.60 ms), "
        "in 31.0 us in 1 of 4 rounds (selective 4.60 ms, onnxruntime 5.50 ms)"
    )
    moved = made.comparison("net").model_copy(update={"core_states": found()})
    steady = made.comparison("other").model_copy(update={"core_states": found()[:1]})
    assert core_state_table([steady]) is None
    table = core_state_table([moved, steady])
    assert table is not None
    assert table.headings == ["model", "us", "rounds", "selective ms", "onnxruntime ms"]
    assert table.rows == [
        ["net", "9.00", "3", "2.60", "3.60"],
        ["net", "31.0", "1", "4.60", "5.50"],
        ["other", "9.00", "3", "2.60", "3.60"],
    ]
    assert table.markdown() in comparisons_markdown([moved, steady])
    assert "64 KB" not in comparisons_markdown([steady])
