"""Products of a tensor's slices become one product, with the same results."""

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from fewtune.onnx_graph import simplify
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.verify.session import run_onnxruntime


def unrolled(operator: str, axis: int, taken: list[int], **attributes: object) -> ModelProto:
    """A sequence of 6 steps of 2 rows, some of them multiplied by the same weights."""
    generator = np.random.default_rng(0)
    shape = [2, 6, 5] if axis else [6, 2, 5]
    weights = generator.standard_normal((3, 5) if attributes.get("transB") else (5, 3))
    tensors = {"w": weights.astype(np.float32), "c": np.arange(3, dtype=np.float32)}
    nodes, names = [], ["w", "c"][: 2 if operator == "Gemm" else 1]
    for step in taken:
        tensors[f"at{step}"] = np.array(step, np.int64)
        nodes.append(helper.make_node("Gather", ["x", f"at{step}"], [f"x{step}"], axis=axis))
        nodes.append(helper.make_node(operator, [f"x{step}", *names], [f"y{step}"], **attributes))
        nodes.append(helper.make_node("Tanh", [f"y{step}"], [f"z{step}"]))
    graph = helper.make_graph(
        nodes,
        "unrolled",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info(f"z{step}", 1, [2, 3]) for step in taken],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def kinds(model: ModelProto) -> Counter[str]:
    """Simplify a model, compare it with the original, and count its nodes."""
    bound = bind_shapes(simplify.with_shapes(model), {}, {})
    result = simplify.simplify(bound)
    shape = [d.dim_value for d in bound.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    both = (run_onnxruntime(each, feeds, 1) for each in (result, bound))
    for ours, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-6)
    return Counter(node.op_type for node in result.graph.node)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("operator", "attributes"), [("MatMul", {}), ("Gemm", {"transB": 1, "alpha": 0.5})]
)
@pytest.mark.parametrize("taken", [[0, 1, 2, 3, 4, 5], [5, 2, 4, 1]])
def test_products_of_slices_are_joined(axis, operator, attributes, taken):
    counts = kinds(unrolled(operator, axis, taken, **attributes))
    assert counts["Gemm"] + counts["MatMul"] == 1
    assert counts["Gather"] == len(taken)
    assert counts["Slice"] == 0


def test_a_product_of_few_slices_stays():
    """A joint product of all six would multiply twice as many rows as are read."""
    assert kinds(unrolled("MatMul", 0, [0, 4, 5]))["Slice"] == 3
