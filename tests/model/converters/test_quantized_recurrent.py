"""onnxruntime's LSTM of 8-bit weights as one kernel."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.model.converters import recurrent_kernel
from fewtune.model.converters.recurrent_kernel import Recurrence
from fewtune.runtime.tvm import set_threads
from tests.made.recurrent import kernels

WIDTH = 20


def quantized_layer(
    kind: type = np.int8,
    zeros: tuple[int, int] = (0, 0),
    direction: str = "bidirectional",
    hidden: int = 12,
    batch: int = 1,
    steps: int = 7,
    by_column: bool = True,
    without: str = "",
    **attributes: object,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A layer of weights of any bytes, and what to feed.

    ``zeros`` are the zero points of both weights; onnxruntime refuses several of one. ``without``
    names inputs, of one letter each, that are left out.
    """
    generator = np.random.default_rng(0)
    directions, limits = 1 + (direction == "bidirectional"), np.iinfo(kind)

    def whole(*shape: int) -> np.ndarray:
        return generator.integers(limits.min, limits.max + 1, shape).astype(kind)

    def numbers(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    def scales(*shape: int) -> np.ndarray:
        return np.float32(0.005) * (np.abs(numbers(*shape)) + np.float32(0.5))

    sizes = (directions, 4 * hidden) if by_column else (directions,)
    arrays = {
        "w": whole(directions, WIDTH, 4 * hidden),
        "r": whole(directions, hidden, 4 * hidden),
        "b": numbers(directions, 8 * hidden),
        "p": numbers(directions, 3 * hidden),
        "h": numbers(directions, batch, hidden),
        "c": numbers(directions, batch, hidden),
        "ws": scales(*sizes),
        "wz": np.full(sizes, zeros[0], kind),
        "rs": scales(*sizes),
        "rz": np.full(sizes, zeros[1], kind),
    }
    given = ["x", "w", "r", "b", "", "h", "c", "p", "ws", "wz", "rs", "rz"]
    inputs = ["" if name in without else name for name in given]
    outputs = ["sequence", "hidden", "cell"]
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        inputs,
        outputs,
        domain="com.microsoft",
        direction=direction,
        hidden_size=hidden,
        **attributes,
    )
    shapes = [(steps, directions, batch, hidden), *[(directions, batch, hidden)] * 2]
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, batch, WIDTH))],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(outputs, shapes, strict=True)
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in inputs],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, {"x": numbers(steps, batch, WIDTH)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"without": "p"},
        {"without": "pbhc", "hidden": 16, "direction": "forward", "by_column": False},
        {"without": "p", "hidden": 3, "kind": np.uint8, "zeros": (128, 128), "by_column": False},
        {"without": "p", "hidden": 5, "kind": np.uint8, "zeros": (94, 128), "direction": "reverse"},
        {"without": "p", "hidden": 17, "kind": np.uint8, "zeros": (128, 7), "steps": 40},
        {"without": "p", "hidden": 17, "batch": 3},
        {"without": "phc", "hidden": 5, "batch": 4, "by_column": False, "zeros": (5, -9)},
    ],
)
def test_one_kernel_quantizes_and_multiplies_at_all_steps(given):
    counts = kernels(*quantized_layer(**given))
    assert sum(count for name, count in counts.items() if "recurrence" in name) == 1
    assert sum(count for name, count in counts.items() if "matmul" in name) == 1


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"without": "p", "batch": 5}])
def test_other_quantized_layers_are_unrolled(given):
    counts = kernels(*quantized_layer(steps=3, **given))
    assert not any("recurrence" in name for name in counts)


@pytest.mark.slow
def test_threads_share_a_quantized_direction(monkeypatch):
    monkeypatch.setattr(recurrent_kernel, "_WAIT_BYTES", -(10**9))
    set_threads(2)
    kernels(*quantized_layer(hidden=24, steps=40, without="p"))


def test_bytes_stay_in_a_core_s_cache_where_floats_do_not():
    sizes = Recurrence("LSTM", 20, 1, 2, 384)
    assert sizes.workers(2) == 2
    assert sizes._replace(weight_dtype="int8").workers(2) == 1
