"""Models that exceed the memory are refused, with the tensor's name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.binding.bind import bind_shapes
from fewtune.binding.memory import refuse_beyond_memory
from fewtune.errors import MachineError

TERA = 2**20


def test_a_tensor_beyond_the_memory_is_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "size"], ["y"], name="widen")],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [TERA, TERA])],
        [numpy_helper.from_array(np.array([TERA, TERA]), "size")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(MachineError, match=r"'y', what Expand \('widen'\) gives, .* 4\.4e\+03 GB"):
        bind_shapes(model, {}, {})


def test_a_tensor_of_half_of_the_memory_is_allowed() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [100])
    model = helper.make_model(helper.make_graph([], "one", [value], []))
    refuse_beyond_memory(model, 800)
    with pytest.raises(MachineError, match="'x', an input of the model"):
        refuse_beyond_memory(model, 799)
