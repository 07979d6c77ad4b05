"""What an import refuses before TVM builds anything."""

import numpy as np
import pytest

from fewtune.model.lower import UnsupportedError, lower, unsupported_nodes
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.target import resolve_target
from tests.made.onnx_text import model_of


@pytest.mark.parametrize("operator", ["NonZero", "Unique"])
def test_an_operator_that_sizes_its_output_by_values_is_named(operator):
    model = model_of(
        f"""(float[8] x) => (float y) {{
            above = Greater (x, zero)
            mask = Cast <to = 1> (above)
            [choosing] chosen = {operator} (mask)
            numbers = Cast <to = 1> (chosen)
            y = ReduceMax <keepdims = 0> (numbers)
        }}""",
        zero=np.float32(0.5),
    )
    bound = simplify(bind_shapes(model, {}, {}))
    with pytest.raises(UnsupportedError, match=f"{operator} .node 'choosing': the size") as refused:
        lower(bound, resolve_target("auto", 1), "NCHW")
    assert [node.operator for node in refused.value.unsupported] == [operator]


def test_a_slice_by_the_values_of_an_input_is_refused_with_a_reason():
    model = model_of(
        """(float[8] x) => (float[1] y) {
            place = ArgMax <axis = 0> (x)
            behind = Add (place, one)
            [slicing] y = Slice (x, place, behind)
        }""",
        one=[1],
    )
    bound = simplify(bind_shapes(model, {}, {}))
    target = resolve_target("auto", 1)
    (node,) = unsupported_nodes(bound, target)
    assert (node.node, node.operator) == ("slicing", "Slice")
    assert node.reason.startswith("the values that it reads choose")
