"""Rounds in which the cores were far from each other, told from the others."""

from __future__ import annotations

import pytest

from fewtune.artifacts import Distance
from fewtune.machine_report import distance_lines, distance_of, distance_text
from fewtune.report import comparisons_markdown
from tests import made_results as made

NEAR_S, FAR_S = 9e-6, 31e-6
SAMPLES_S = {
    "untuned": [1.0],
    "selective": [2.5e-3, 2.7e-3, 4.6e-3, 2.6e-3],
    "onnxruntime": [3.6e-3, 3.6e-3, 5.5e-3, 3.6e-3],
}


def found() -> Distance:
    distance = distance_of(SAMPLES_S, [NEAR_S, 1.1 * NEAR_S, FAR_S, NEAR_S])
    assert distance is not None
    return distance


def test_medians_of_both_kinds_of_rounds() -> None:
    distance = found()
    assert (distance.rounds, distance.far_rounds) == (4, 1)
    assert distance.near_us == pytest.approx(9.0)
    assert distance.far_us == pytest.approx(31.0)
    # What was not in every round is in neither.
    assert distance.near_ms == pytest.approx({"selective": 2.6, "onnxruntime": 3.6})
    assert distance.far_ms == pytest.approx({"selective": 4.6, "onnxruntime": 5.5})


def test_rounds_of_one_kind() -> None:
    distance = distance_of(SAMPLES_S, [NEAR_S] * 4)
    assert distance is not None
    assert (distance.far_rounds, distance.far_us, distance.far_ms) == (0, None, {})
    assert distance_text(distance) == "64 KB went from core to core in 9.00 us in all rounds"
    assert distance_of(SAMPLES_S, []) is None


def test_a_comparison_tells_what_took_longer() -> None:
    assert distance_text(found()) == (
        "64 KB went from core to core in 9.00 us, in 31.0 us in 1 of 4 rounds, in which the host "
        "had the cores apart (selective 4.60 instead of 2.60 ms, onnxruntime 5.50 instead of "
        "3.60 ms)"
    )
    moved = made.comparison("net").model_copy(update={"distance": found()})
    steady = made.comparison("other")
    assert distance_lines([steady]) == []
    (line,) = distance_lines([moved, steady])
    assert line == f"The cores' distance: net {distance_text(found())}."
    assert line in comparisons_markdown([moved]).splitlines()
