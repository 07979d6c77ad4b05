"""Files that onnxruntime runs although ONNX's checker refuses them."""

import onnx

from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file
from fewtune.verify.session import tensor_specs
from tests.made.onnx_text import model_of


def test_an_output_without_a_type_has_that_of_its_node(tmp_path):
    onnx.save(model_of("(float[2,3] x) => (y) {y = Cast <to = 6> (x)}"), tmp_path / "untyped.onnx")
    read, _ = checked_file(tmp_path / "untyped.onnx", frozenset())
    _, (output,) = tensor_specs(bind_shapes(read, {}, {}))
    assert (output.dtype, output.shape) == ("int32", [2, 3])
