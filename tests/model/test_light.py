import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fewtune.model.light import light_model
from fewtune.onnx_graph.checks import can_show_fault

# The others are larger than a test should be; they differ in size, not in kind.
SMALL = ["shufflenet", "squeezenet"]


def test_same_seed_gives_the_same_bytes_and_another_seed_others():
    first, again = light_model("squeezenet", 0), light_model("squeezenet", 0)
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != light_model("squeezenet", 1).SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_weight_varies_and_only_data_is_an_input(name):
    model = light_model(name, 0)
    onnx.checker.check_model(model)
    assert model.ir_version >= 8
    assert len(model.graph.input) == 1
    assert not any(node.op_type == "ConstantOfShape" for node in model.graph.node)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size > 1:
            assert values.min() < values.max(), tensor.name
    assert can_show_fault(model)
