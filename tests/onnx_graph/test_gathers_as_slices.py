"""Attention as it is exported: slices instead of gathers."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from fewtune.onnx_graph.views import move_views
from tests.made.compiled import error_of, scheduled
from tests.made.onnx_text import model_of
from tests.onnx_graph.test_views import kinds, lowered, simplified
from tests.tiny_models import random_weight

BOUND = 1e-5
TOKENS, HEADS, SIZE = 13, 2, 8
WIDTH = HEADS * SIZE
# As PyTorch exports it: queries, keys and values first, then heads, tokens and places.
ORDER = (2, 0, 3, 1, 4)


def gathers(indices: dict, axis: int = 0, opset: int = 13, more: str = "") -> ModelProto:
    """Gathers from a transposed product, and ``more`` outputs."""
    taken = " ".join(f"{name} = Gather <axis = {axis}> (heads, {name}_at)" for name in indices)
    outputs = ", ".join(f"float[] {name}" for name in indices)
    model = model_of(
        f"""(float[1,{TOKENS},{WIDTH}] x) => ({outputs}{more}) {{
            joint = MatMul (x, weight)
            split = Reshape (joint, shape)
            heads = Transpose <perm = {[*ORDER]}> (split)
            {taken}
        }}""",
        opset,
        weight=random_weight(np.random.default_rng(0), WIDTH, 3 * WIDTH),
        shape=[1, TOKENS, 3, HEADS, SIZE],
        **{f"{name}_at": index for name, index in indices.items()},
    )
    return onnx.shape_inference.infer_shapes(model)


def rewritten(model: ModelProto) -> ModelProto:
    result = move_views(model)
    onnx.checker.check_model(result)
    return result


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_gathers_of_one_index_are_slices_before_the_transpose(opset):
    model = gathers({"q": np.int64(0), "k": np.int64(1), "v": np.int64(-1)}, opset=opset)
    result = simplified(model)
    assert "Gather" not in kinds(result)
    assert kinds(result).count("Slice") == kinds(result).count("Transpose") == 3
    first = next(n for n in result.graph.node if n.op_type == "Slice")
    assert first.input[0] in {n.output[0] for n in result.graph.node if n.op_type == "Reshape"}
    assert error_of(model, scheduled(lowered(model))) < BOUND


@pytest.mark.parametrize("axis", [0, 2, 3, -1])
@pytest.mark.parametrize("stays", [False, True])
def test_any_axis_and_an_axis_that_stays(axis, stays):
    index = np.array([1] if stays else 1, np.int64)
    model = gathers({"part": index}, axis)
    assert "Gather" not in kinds(simplified(model))
    assert error_of(model, lowered(model)) < BOUND


def test_a_transpose_with_other_consumers_stays_before_its_slices():
    model = gathers({"q": np.int64(0), "k": np.int64(2)}, more=", float[] heads")
    result = rewritten(model)
    assert kinds(result).count("Transpose") == 1
    assert all(n.input[0] == "heads" for n in result.graph.node if n.op_type == "Slice")
    assert error_of(model, lowered(model)) < BOUND


@pytest.mark.parametrize(
    "index",
    [np.array([0, 2], np.int64), np.array([[1]], np.int64), np.int64(3)],
    ids=["two places", "a matrix", "out of bounds"],
)
def test_other_gathers_stay(index):
    model = gathers({"part": index})
    assert kinds(rewritten(model)) == kinds(model)


def test_an_index_that_is_no_constant_stays():
    table = random_weight(np.random.default_rng(0), 5, 4)
    model = model_of("(int64 at) => (float[] row) {row = Gather (table, at)}", table=table)
    assert kinds(rewritten(onnx.shape_inference.infer_shapes(model))) == ["Gather"]
