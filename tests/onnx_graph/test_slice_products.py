"""Products of a tensor's slices become one product, with the same results."""

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.onnx_graph import simplify
from fewtune.onnx_graph.bind import bind_shapes
from tests.made.onnx_text import model_of
from tests.made.outputs import run_onnxruntime


def unrolled(operator: str, axis: int, taken: list[int], attributes: str = "") -> ModelProto:
    """A sequence of 6 steps of 2 rows, some of them multiplied by the same weights."""
    generator = np.random.default_rng(0)
    shape = [2, 6, 5] if axis else [6, 2, 5]
    weights = generator.standard_normal((3, 5) if "transB" in attributes else (5, 3))
    tensors = {"w": weights.astype(np.float32), "c": np.arange(3, dtype=np.float32)}
    names = ["w", "c"][: 2 if operator == "Gemm" else 1]
    text, outputs = [], []
    for step in taken:
        tensors[f"at{step}"] = np.array(step, np.int64)
        text.append(f"x{step} = Gather <axis = {axis}> (x, at{step})")
        text.append(f"y{step} = {operator} {attributes} (x{step}, {', '.join(names)})")
        text.append(f"z{step} = Tanh (y{step})")
        outputs.append(f"float[2,3] z{step}")
    nodes = f"(float{shape} x) => ({', '.join(outputs)}) {{{' '.join(text)}}}"
    return model_of(nodes, opset=13, **tensors)


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
    ("operator", "attributes"), [("MatMul", ""), ("Gemm", "<transB = 1, alpha = 0.5>")]
)
@pytest.mark.parametrize("taken", [[0, 1, 2, 3, 4, 5], [5, 2, 4, 1]])
def test_products_of_slices_are_joined(axis, operator, attributes, taken):
    counts = kinds(unrolled(operator, axis, taken, attributes))
    assert counts["Gemm"] + counts["MatMul"] == 1
    assert counts["Gather"] == len(taken)
    assert counts["Slice"] == 0


def test_a_product_of_few_slices_stays():
    """A joint product of all six would multiply twice as many rows as are read."""
    assert kinds(unrolled("MatMul", 0, [0, 4, 5]))["Slice"] == 3
