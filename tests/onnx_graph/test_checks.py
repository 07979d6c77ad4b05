"""Files that ONNX's checker refuses and onnxruntime runs, and those that are too large."""

import onnx
import pytest

from fewtune.errors import InputError
from fewtune.onnx_graph import checks
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.checks import checked_file
from fewtune.verify.values import tensor_specs
from tests.made.onnx_text import model_of


def test_an_output_without_a_type_has_that_of_its_node(tmp_path):
    onnx.save(model_of("(float[2,3] x) => (y) {y = Cast <to = 6> (x)}"), tmp_path / "untyped.onnx")
    read, _ = checked_file(tmp_path / "untyped.onnx", frozenset())
    _, (output,) = tensor_specs(bind_shapes(read, {}, {}))
    assert (output.dtype, output.shape) == ("int32", [2, 3])


def test_a_model_of_too_many_nodes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_MOST_NODES", 3)
    path = tmp_path / "long.onnx"
    steps = "\n".join(f"v{place + 1} = Neg(v{place})" for place in range(4))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2] v0) => (float[2] v4) {{{steps}}}'
    onnx.save(onnx.parser.parse_model(text), path)
    with pytest.raises(InputError, match="has 4 nodes, and at most 3 are imported"):
        checked_file(path, frozenset())
