"""Models of one node, and the comparison of what they are expanded to: both by onnxruntime."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from fewtune.onnx_graph.graph import all_nodes, operator_name
from fewtune.onnx_graph.operators import elementwise, normalizations, windows
from fewtune.onnx_graph.operators.expand import EARLY, expand
from fewtune.onnx_graph.operators.recurrent import UNROLLED
from fewtune.onnx_graph.quantized.lift import lift
from fewtune.onnx_graph.simplify import with_shapes
from tests.made.outputs import run_onnxruntime


def node_model(
    node: NodeProto,
    arrays: dict[str, np.ndarray],
    constants: Sequence[str] = (),
    opset: int = 17,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed: the arrays that are no constants."""
    feeds = {name: array for name, array in arrays.items() if name not in constants}
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
        [numpy_helper.from_array(arrays[name], name) for name in constants],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def expanded(model: ModelProto) -> ModelProto:
    """The model with all that is known expanded."""
    result = expand(lift(expand(with_shapes(model), EARLY)), UNROLLED)
    kinds = set(map(operator_name, all_nodes(result.graph)))
    # Of these, some forms stay as they are.
    stays = elementwise.HANDLERS.keys() | normalizations.HANDLERS.keys() | windows.HANDLERS.keys()
    stays |= {"Concat", "Split"}
    assert not kinds & ((EARLY | UNROLLED).keys() - stays)
    return result


def assert_same(
    model: ModelProto, feeds: dict[str, np.ndarray], tolerance: float = 2e-5, steps: int = 0
) -> ModelProto:
    """Compare a model with what it is expanded to; integers may differ by some steps."""
    result = expanded(model)
    expected = run_onnxruntime(model, feeds, 1)
    for actual, wanted in zip(run_onnxruntime(result, feeds, 1), expected, strict=True):
        assert actual.shape == wanted.shape
        assert actual.dtype == wanted.dtype
        difference = np.abs(actual.astype(np.float64) - wanted.astype(np.float64))
        whole = wanted.dtype.kind in "iub"
        allowed = steps if whole else tolerance * max(1.0, float(np.abs(wanted).max(initial=0)))
        assert difference.max(initial=0) <= allowed
    return result


def assert_node(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[str] = ("out",),
    domain: str = "com.microsoft",
    constants: Sequence[int] = (),
    opset: int = 17,
    tolerance: float = 2e-5,
    steps: int = 0,
    **attributes: object,
) -> ModelProto:
    """Compare a node on these inputs, those at the numbers in ``constants`` as initialisers."""
    names = ["" if array is None else f"in_{i}" for i, array in enumerate(inputs)]
    node = helper.make_node(operator, names, list(outputs), "node", domain=domain, **attributes)
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    model, feeds = node_model(node, arrays, [f"in_{i}" for i in constants], opset)
    return assert_same(model, feeds, tolerance, steps)


def normal(*shape: int) -> np.ndarray:
    """Normal float32 values that depend on the shape alone."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
