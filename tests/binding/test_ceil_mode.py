"""Poolings with ``ceil_mode`` have the size of onnxruntime's outputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fewtune.binding.bind import bind_shapes
from fewtune.onnx_graph.graph import static_shape
from fewtune.verify.session import run_onnxruntime


@pytest.mark.parametrize("opset", [11, 19, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads", "sizes"),
    [
        ([1, 1], [2, 2], [0, 0, 0, 0], [12, 13]),
        ([2, 2], [3, 2], [0, 0, 0, 0], [9, 7]),
        ([2, 3], [2, 2], [1, 1, 1, 1], [7, 8]),
    ],
)
def test_no_window_starts_behind_the_end(
    opset: int, pool: str, kernel: list, strides: list, pads: list, sizes: list
) -> None:
    given = {"kernel_shape": kernel, "strides": strides, "ceil_mode": 1}
    # The second pooling's size follows from the first one's.
    nodes = [
        helper.make_node(pool, ["x"], ["between"], pads=pads, **given),
        helper.make_node(pool, ["between"], ["y"], **given),
    ]
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    bound = bind_shapes(model, {}, {})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, *sizes)).astype(np.float32)}
    (wanted,), (actual,) = (run_onnxruntime(each, feeds, 1) for each in (model, bound))
    assert static_shape(bound.graph.output[0]) == list(wanted.shape)
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)
