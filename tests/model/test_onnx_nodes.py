"""ONNX's own node tests of what fewtune converts, through import, schedules and a library."""

import json
from pathlib import Path

import pytest

from benchmarks.onnx_nodes import node_tests, run_test
from fewtune.model.converters.registry import converters
from fewtune.onnx_graph.operators.expand import EARLY
from fewtune.onnx_graph.operators.recurrent import UNROLLED
from fewtune.process.optional_steps import OptionalSteps

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results" / "onnx_nodes.json"
# What is left to TVM's importer alone is checked by the benchmark.
OWN = {name.rpartition(".")[2] for name in EARLY | UNROLLED} | {
    *converters(None, OptionalSteps({}))
}


def cheapest() -> dict[str, str]:
    """Of each own operator that is right in the published results, the test that took the least."""
    found = json.loads(RESULTS.read_text())["results"]
    right = [each for each in found if each["outcome"] == "right" and each["operator"] in OWN]
    right.sort(key=lambda each: (each["operator"], -each["seconds"]))
    return {each["operator"]: each["name"] for each in right}


CHEAPEST = cheapest()


@pytest.fixture(scope="module")
def cases():
    return node_tests()


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
