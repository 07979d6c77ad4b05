"""RoiAlign in all its forms, as onnxruntime computes it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.model.lower import lower
from fewtune.onnx_graph.simplify import simplify
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from fewtune.verify.session import run_onnxruntime

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})
# As left, top, right and bottom: within the images, beyond their borders, of no size, outside; the
# last is turned round in one axis, by less than onnxruntime refuses.
REGIONS = [
    [1, 2, 9, 8],
    [-4, -3, 30, 40],
    [3, 3, 3, 3],
    [7.5, 0.25, 9, 20],
    [60, 1, 70, 9],
    [5, 1, 4.5, 8],
]


@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions_are_sampled_as_onnxruntime_does(
    coordinates: str, scale: float, ratio: int, mode: str
) -> None:
    node = helper.make_node(
        "RoiAlign",
        ["x", "regions", "images"],
        ["y"],
        mode=mode,
        output_height=3,
        output_width=2,
        sampling_ratio=ratio,
        spatial_scale=scale,
        coordinate_transformation_mode=coordinates,
    )
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 3, 11, 9)).astype(np.float32),
        "regions": np.array(REGIONS, np.float32),
        "images": np.array([0, 1, 0, 1, 1, 0]),
    }
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(REGIONS), 3, 3, 2])
    graph = helper.make_graph([node], "regions", infos, [result])
    opset = [helper.make_opsetid("", 16)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    lowered = lower(simplify(model), TARGET, "NCHW")
    compiled = CompiledModel(build_executable(lowered, TARGET), TARGET)
    (expected,) = run_onnxruntime(model, feeds, 1)
    (actual,) = compiled.outputs(list(feeds.values()))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
