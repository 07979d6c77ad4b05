"""Movements of outputs, which are summed block by block."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from fewtune.verify.noise import NoiseMeter


def test_an_element_in_a_later_block_has_the_noise_of_the_same_element_in_an_earlier_one() -> None:
    count = 100_000  # several blocks, the last of them not full
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [count])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [count])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = np.ones(count, np.float32)
    x[[7, 99_990]] = np.inf, 0.0
    (found,) = NoiseMeter(model, 1, {}).expected({"x": x}, [2 * x], [], seed=0)
    # Infinity has no finite distance, and zero does not move: only the typical noise is left.
    assert found.noise[7] == found.noise[99_990] == found.noise.min() > 0
    blocks = np.array_split(found.noise, 4)
    means = [float(np.sqrt(np.mean(np.square(part)))) for part in blocks]
    assert max(means) < 1.05 * min(means)
