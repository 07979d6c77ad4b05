"""GridSample with reflection padding, compared with onnxruntime's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.model.lower import lower
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from fewtune.verify.session import run_onnxruntime

TARGET = tvm.target.Target({"kind": "llvm", "num-cores": 2})


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize(
    ("mode", "image"),
    [
        ("linear", (5, 7)),
        ("nearest", (5, 7)),
        ("cubic", (5, 7)),
        # TVM's own divides by zero.
        ("cubic", (1, 4)),
        ("linear", (3, 4, 5)),
        ("nearest", (3, 1, 5)),
    ],
)
def test_reflected_images_are_sampled_as_onnxruntime_does(
    mode: str, image: tuple[int, ...], aligned: int
) -> None:
    axes = len(image)
    sampled = (6, 4, 3)[-axes:]
    node = helper.make_node(
        "GridSample",
        ["x", "at"],
        ["y"],
        mode=mode,
        padding_mode="reflection",
        align_corners=aligned,
    )
    shapes = {"x": (2, 3, *image), "at": (2, *sampled, axes), "y": (2, 3, *sampled)}
    infos = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    graph = helper.make_graph([node], "sampling", [infos["x"], infos["at"]], [infos["y"]])
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    compiled = CompiledModel(build_executable(lower(model, TARGET, "NCHW"), TARGET), TARGET)
    random = np.random.default_rng(3)
    x = random.normal(size=shapes["x"]).astype(np.float32)
    # Places near the image, far from it, and on the edges between pixels.
    for at in (
        random.normal(size=shapes["at"]),
        random.normal(0, 30, shapes["at"]),
        random.integers(-9, 10, shapes["at"]) / np.array(image[::-1]),
    ):
        feeds = {"x": x, "at": at.astype(np.float32)}
        (expected,) = run_onnxruntime(model, feeds, 1)
        (actual,) = compiled.outputs([x, feeds["at"]])
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
