"""Small operators in forms that TVM's importer reads, compared with onnxruntime."""

import numpy as np
import pytest
from onnx import helper

from fewtune.errors import InputError
from tests.expanded_models import assert_node, expanded, node_model

GENERATOR = np.random.default_rng(0)


def test_equality_of_booleans_is_written_as_xor():
    left, right = (GENERATOR.integers(0, 2, (3, 4)).astype(bool) for _ in range(2))
    result = assert_node("Equal", [left, right], domain="")
    assert [node.op_type for node in result.graph.node] == ["Xor", "Not"]


@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("opset", [13, 18])
def test_log_sum_exp_is_written_out(axes, keepdims, opset):
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


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("depth", [5, [5]])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_accepts_any_form_of_depth(axis, depth, dtype):
    inputs = [GENERATOR.integers(-7, 9, (3, 4)), np.array(depth), np.array([2, 7], dtype)]
    assert_node("OneHot", inputs, domain="", constants=(1, 2), axis=axis)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_ignores_fractional_indices(dtype):
    places = np.array([0, 2, -1, 3, 0.5, -0.5, 2.999], np.float32).astype(dtype)
    inputs = [places, np.array([4]), np.array([-1, 5])]
    assert_node("OneHot", inputs, domain="", constants=[1, 2])


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2", "ReduceLogSumExp"])
def test_fractions_of_integers_are_refused_by_name(operator):
    node = helper.make_node(operator, ["data"], ["out"], "node")
    model, _ = node_model(node, {"data": np.ones((2, 3), np.int32)})
    with pytest.raises(InputError, match=f"{operator} node 'node' reduces integers"):
        expanded(model)


def test_powers_of_integers_are_refused_by_name():
    node = helper.make_node("Pow", ["base", "exponent"], ["out"], "node")
    arrays = {"base": np.ones(3, np.int64), "exponent": np.full(3, 2.0, np.float32)}
    with pytest.raises(InputError, match="Pow node 'node' raises integers to a power"):
        expanded(node_model(node, arrays)[0])
