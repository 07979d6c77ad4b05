"""Tables of bytes are gathered as bytes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.made.outputs import run_onnxruntime
from tests.quantized_models import simplified

ROWS, COLUMNS = 300, 8
GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.integers(-128, 128, (ROWS, COLUMNS)).astype("int8")
BY_ROW = GENERATOR.random((ROWS, 1), "float32")
CAST = "a = Cast <to = 1> (table)\n"


@pytest.mark.parametrize(
    ("nodes", "stays"),
    [
        (CAST + "t = Mul (a, scale)", True),
        (CAST + "b = Sub (a, one)\nt = Mul (b, column)", True),
        ("t = DequantizeLinear (table, one, zero)", True),
        ("t = DequantizeLinear <axis = 1> (table, column, zeros)", False),
        (CAST + "b = Mul (a, scale)\nt = Relu (b)", False),
    ],
)
def test_rows_are_taken_before_they_become_floats(nodes, stays):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (int64[2, 3] ids) => (float[2, 3, {COLUMNS}] y) {{
            {nodes}
            y = Gather (t, ids)
        }}"""
    )
    given = {
        "table": TABLE,
        "scale": BY_ROW,
        "column": BY_ROW[:COLUMNS, 0],
        "one": np.float32(0.5),
        "zero": np.int8(3),
        "zeros": np.arange(COLUMNS, dtype="int8"),
    }
    read = {name for node in model.graph.node for name in node.input}
    for name in read & given.keys():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(given[name]), name))
    result = simplified(model)
    tables = {each.data_type for each in result.graph.initializer if list(each.dims)[1:] == [8]}
    assert tables == {TensorProto.INT8 if stays else TensorProto.FLOAT}
    feeds = {"ids": GENERATOR.integers(-ROWS, ROWS, (2, 3))}
    (actual,), (expected,) = (run_onnxruntime(each, feeds, 1) for each in (result, model))
    np.testing.assert_array_equal(actual, expected)
