"""Dimensions whose names are formulas of others."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from fewtune.errors import InputError
from fewtune.onnx_graph.shapes import input_shapes


def model(**inputs):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in inputs.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_model(helper.make_graph([], "shapes", values, outputs))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + 1", 17),
        ("past + length", 24),
        ("2*past", 32),
        ("(past - 1)//2", 7),
        ("floor(past/3)", 5),
        ("Max(1, past - 20)", 1),
    ],
)
def test_a_term_of_dimensions_is_computed(name, size):
    given = model(x=["past", "length"], mask=[1, name])
    assert input_shapes(given, {}, {"past": 16, "length": 8})["mask"] == [1, size]
    # A dimension may be bound by an input's shape; a size for the formula itself comes first.
    assert input_shapes(given, {"x": [16, 8]}, {})["mask"] == [1, size]
    assert input_shapes(given, {"x": [16, 8], "mask": [1, 3]}, {})["mask"] == [1, 3]


@pytest.mark.parametrize("name", ["past + other", "past - 16", "past/3", "past.0", "f(past)"])
def test_other_names_stay_open(name):
    with pytest.raises(InputError, match="dynamic dimension"):
        input_shapes(model(x=["past"], mask=[name]), {}, {"past": 16})


def test_an_empty_dimension_may_be_confirmed():
    with pytest.raises(InputError, match="--shape x=1,3; --shape x=0,3 if it has no elements"):
        input_shapes(model(x=[0, 3], z=[2]), {}, {})
    assert input_shapes(model(x=[0, 3], z=[2]), {"x": [0, 3]}, {}) == {"x": [0, 3], "z": [2]}
