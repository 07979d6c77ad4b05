"""Small operators in forms that TVM's importer reads, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.expanded_models import assert_node

GENERATOR = np.random.default_rng(0)


def test_equality_of_bits_is_no_comparison() -> None:
    left, right = (GENERATOR.integers(0, 2, (3, 4)).astype(bool) for _ in range(2))
    result = assert_node("Equal", [left, right], domain="")
    assert [node.op_type for node in result.graph.node] == ["Xor", "Not"]


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_a_log_of_summed_exponentials_is_written_out(
    axes: list[int] | None, keepdims: int, opset: int
) -> None:
    data = (30 * GENERATOR.standard_normal((3, 4, 5))).astype(np.float32)
    data[1, 2] = data[0, 0, 0] = -np.inf
    given = {} if axes is None or opset >= 18 else {"axes": axes}
    inputs = [data] if axes is None or opset < 18 else [data, np.array(axes)]
    operators = assert_node(
        "ReduceLogSumExp",
        inputs,
        domain="",
        constants=range(1, len(inputs)),
        opset=opset,
        keepdims=keepdims,
        **given,
    ).graph.node
    assert "ReduceMax" in {node.op_type for node in operators}
