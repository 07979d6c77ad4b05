"""Files that onnxruntime runs although ONNX's checker refuses them."""

import onnx
from onnx import TensorProto, helper

from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file
from fewtune.verify.session import tensor_specs


def test_an_output_without_a_type_has_that_of_its_node(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)],
        "untyped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [onnx.ValueInfoProto(name="y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "untyped.onnx")
    read, _ = checked_file(tmp_path / "untyped.onnx", frozenset())
    _, (output,) = tensor_specs(bind_shapes(read, {}, {}))
    assert (output.dtype, output.shape) == ("int32", [2, 3])
