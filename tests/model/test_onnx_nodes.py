"""ONNX's own node tests, one of each operator, through import, schedules and a library."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.onnx_nodes import node_tests, operator_of, run_test

# Of each kind of import: by TVM's converters, our own, ONNX's functions, expansions, constants.
OPERATORS = [
    "Add",
    "ArgMax",
    "AveragePool",
    "BitCast",
    "Celu",
    "CenterCropPad",
    "Clip",
    "Concat",
    "Conv",
    "Cosh",
    "CumProd",
    "CumSum",
    "DFT",
    "EyeLike",
    "Gather",
    "Gemm",
    "HannWindow",
    "IsInf",
    "LayerNormalization",
    "MatMul",
    "MaxPool",
    "Not",
    "Pad",
    "Pow",
    "Range",
    "ReduceL1",
    "Resize",
    "ScatterElements",
    "Shape",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Split",
    "TopK",
    "Transpose",
    "Where",
]


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """The first test of each operator."""
    first: dict[str, Any] = {}
    for _, case in sorted(node_tests().items()):
        first.setdefault(operator_of(case), case)
    return first


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_gives_what_onnxruntime_gives(cases: dict[str, Any], operator: str) -> None:
    result = run_test(cases[operator])
    assert result is None or (result.outcome, result.reason) == ("right", "")


@pytest.mark.parametrize("operator", ["Det", "StringConcat", "NonZero"])
def test_what_is_refused_is_named(cases: dict[str, Any], operator: str) -> None:
    result = run_test(cases[operator])
    assert result is not None
    assert result.outcome == "refused"
    assert "\n" not in result.reason
