import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fewtune.model.lower import lower
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from fewtune.task.analysis import call_counts
from fewtune.verify.session import run_onnxruntime

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})


@pytest.mark.slow
def test_steps_of_a_layer_share_their_kernels():
    """One product of 8 x 32 serves both directions and all steps but the first."""
    generator = np.random.default_rng(0)
    shapes = {"W": (2, 32, 4), "R": (2, 32, 8), "B": (2, 64)}
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    node = helper.make_node(
        "LSTM", ["x", "W", "R", "B"], ["y", "h"], hidden_size=8, direction="bidirectional"
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", 1, [12, 1, 4])],
        [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="h")],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model)
    bound = bind_shapes(model, {}, {})
    lowered = lower(simplify(bound), TARGET, "NHWC")
    counts = call_counts(lowered)
    products = {name: count for name, count in counts.items() if "matmul" in name}
    assert sorted(products.values()) == [2, 22]
    assert len(counts) < 12
    data = generator.standard_normal((12, 1, 4)).astype(np.float32)
    actual = CompiledModel(build_executable(lowered, TARGET), TARGET).outputs([data])
    for ours, wanted in zip(actual, run_onnxruntime(bound, {"x": data}, 1), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-5)
