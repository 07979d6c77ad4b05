"""ONNX's own node tests, one of each operator, through import, schedules and a library."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.onnx_nodes import node_tests, run_test

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results" / "onnx_nodes.json"


def cheapest() -> dict[str, str]:
    """Of each operator that is right in the published results, the test that took the least."""
    chosen: dict[str, dict[str, Any]] = {}
    for result in json.loads(RESULTS.read_text())["results"]:
        known = chosen.get(result["operator"])
        quicker = known is None or result["seconds"] < known["seconds"]
        if result["outcome"] == "right" and quicker:
            chosen[result["operator"]] = result
    return {operator: result["name"] for operator, result in sorted(chosen.items())}


CHEAPEST = cheapest()


@pytest.fixture(scope="module")
def cases():
    return node_tests()


def test_the_sample_is_of_many_operators():
    assert len(CHEAPEST) >= 140


@pytest.mark.parametrize("operator", CHEAPEST)
def test_an_operator_gives_what_onnxruntime_gives(cases, operator):
    result = run_test(cases[CHEAPEST[operator]])
    assert result is not None
    assert (result.outcome, result.reason) == ("right", "")


@pytest.mark.parametrize(
    "name", ["test_string_concat", "test_nonzero_example", "test_training_dropout"]
)
def test_what_is_refused_is_named(cases, name):
    result = run_test(cases[name])
    assert result is not None
    assert result.outcome == "refused"
    assert "\n" not in result.reason
