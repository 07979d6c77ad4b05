"""Empty inputs, such as a language model's past at its first step."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from fewtune.binding.bind import bind_shapes
from fewtune.errors import InputError
from fewtune.verify.session import run_onnxruntime


def with_past() -> ModelProto:
    dims = {"keys": [1, 3, 4], "past": [1, "past_length", 4]}
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "keys"], ["present"], axis=1)],
        "with_past",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in dims.items()],
        [helper.make_tensor_value_info("present", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("shapes", "dimensions"), [({"past": [1, 0, 4]}, {}), ({}, {"past_length": 0})]
)
def test_an_empty_past_becomes_a_constant(shapes: dict, dimensions: dict) -> None:
    bound = bind_shapes(with_past(), shapes, dimensions)
    assert [value.name for value in bound.graph.input] == ["keys"]
    keys = np.random.default_rng(0).standard_normal((1, 3, 4)).astype(np.float32)
    (present,) = run_onnxruntime(bound, {"keys": keys}, 1)
    np.testing.assert_array_equal(present, keys)


@pytest.mark.parametrize("size", [-1, 0])
def test_not_all_inputs_may_be_empty(size: int) -> None:
    model = with_past()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "length"
    with pytest.raises(InputError, match="1 or more"):
        bind_shapes(model, {"past": [1, size, 4], "keys": [1, size, 4]}, {})
