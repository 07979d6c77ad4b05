"""Moved reshapes, transposes and gathers: results stay, activations fuse, slices are read."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.views import move_views
from fewtune.runtime.tvm import tvm
from fewtune.task.analysis import call_counts
from fewtune.verify.values import random_inputs, tensor_specs
from tests import tuned_tiny
from tests.made.compiled import error_of, scheduled
from tests.made.onnx_text import model_of
from tests.made.outputs import relative_error, run_onnxruntime
from tests.tiny_models import random_weight

BOUND = 1e-5
TOKENS, WIDTH, INNER = 12, 32, 48


def simplified(model: ModelProto) -> ModelProto:
    bound = bind_shapes(model, {}, {})
    result = prepare.simplify(bound)
    onnx.checker.check_model(result)
    inputs, _ = tensor_specs(bound)
    feeds = random_inputs(inputs, 0)
    expected, actual = (run_onnxruntime(each, feeds, 1) for each in (bound, result))
    assert relative_error(actual, expected) < BOUND
    return result


def lowered(model: ModelProto) -> tvm.IRModule:
    return lower(simplified(model), tuned_tiny.target(), "NHWC")


def kinds(model: ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


# Two products over the last axis, with a GELU as it is exported between them.
TWO_PRODUCTS = f"""(float[1,{TOKENS},{WIDTH}] x) => (OUTPUTS) {{
    inner = MatMul (x, first)
    biased = Add (inner, bias)
    ratio = Div (biased, root)
    share = Erf (ratio)
    factor = Add (share, one)
    product = Mul (biased, factor)
    activated = Mul (product, half)
    y = MatMul (activated, second)
}}"""


def two_products(rank: int = 0, outputs: str = "float[] y") -> ModelProto:
    """The products; the constants of the GELU have this rank."""
    generator = np.random.default_rng(0)
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5}
    return model_of(
        TWO_PRODUCTS.replace("OUTPUTS", outputs),
        first=random_weight(generator, INNER, WIDTH).T.copy(),
        second=random_weight(generator, WIDTH, INNER).T.copy(),
        bias=generator.standard_normal(INNER).astype(np.float32),
        **{name: np.full((1,) * rank, value, np.float32) for name, value in numbers.items()},
    )


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_an_activation_is_fused_into_the_product_before_it(rank):
    module = lowered(two_products(rank))
    assert kinds(simplified(two_products(rank))).count("Reshape") == 2
    products = [name for name in call_counts(module) if "matmul" in name]
    assert len(products) == 2
    (activated,) = [name for name in products if "erf" in name]
    assert activated.startswith("fused_matmul_add_divide_erf")
    assert not [name for name in call_counts(module) if "erf" in name and "matmul" not in name]
    assert error_of(two_products(rank), scheduled(module)) < BOUND


def test_a_value_with_other_readers_keeps_its_reshape():
    model = two_products(outputs="float[] y, float[] biased")
    found = kinds(simplified(model))
    assert found.index("Reshape", found.index("Gemm")) < found.index("Erf")
    assert error_of(model, scheduled(lowered(model))) < BOUND


# A residual block with a layer norm between convolutions, as in ConvNeXt.
BLOCK_OF_ROWS = f"""(float[1,3,32,32] x) => (OUTPUTS) {{
    planes = Conv <strides = [4, 4]> (x, stem)
    rows = Transpose <perm = [0, 2, 3, 1]> (planes)
    n = LayerNormalization <axis = -1, epsilon = 1e-6> (rows, scale, shift)
    base = Transpose <perm = [0, 3, 1, 2]> (n)
    d = Conv <group = {WIDTH}, pads = [1, 1, 1, 1]> (base, depthwise)
    d_rows = Transpose <perm = [0, 2, 3, 1]> (d)
    mixed = MatMul (d_rows, product)
    branch = Transpose <perm = [0, 3, 1, 2]> (mixed)
    sum = Add (base, branch)
    y = Conv <group = {WIDTH}, pads = [1, 1, 1, 1]> (sum, depthwise)
}}"""


def block_of_rows(outputs: str = "float[] y") -> ModelProto:
    generator = np.random.default_rng(0)
    return model_of(
        BLOCK_OF_ROWS.replace("OUTPUTS", outputs),
        stem=random_weight(generator, WIDTH, 3, 4, 4),
        depthwise=random_weight(generator, WIDTH, 1, 3, 3),
        product=random_weight(generator, WIDTH, WIDTH),
        scale=generator.uniform(0.5, 1.5, WIDTH).astype(np.float32),
        shift=generator.standard_normal(WIDTH).astype(np.float32),
    )


def test_a_residual_between_layer_norms_needs_no_transposes():
    module = lowered(block_of_rows())
    # One transpose of the image, and one of the result.
    assert sum(n for name, n in call_counts(module).items() if "transpose" in name) == 2
    assert error_of(block_of_rows(), scheduled(module)) < BOUND


def test_transposes_with_other_readers_stay():
    model = block_of_rows("float[] y, float[] base, float[] branch")
    assert kinds(simplified(model)).count("Transpose") == kinds(model).count("Transpose")
    assert error_of(model, scheduled(lowered(model))) < BOUND


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_constant_exponent_becomes_a_scalar(shape):
    model = model_of(
        "(float[1,8,8,8] x) => (float[] y) {positive = Relu (x) y = Pow (positive, exponent)}",
        exponent=np.full(shape, 2.0, np.float32),
    )
    module = lowered(model)
    (kernel,) = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernel.params) == 2
    assert error_of(model, scheduled(module)) < BOUND


def test_a_constant_whose_axes_matter_keeps_them():
    one = np.ones((1, 1), np.float32)
    model = model_of("(float[8] x) => (float[] y) {y = Add (x, one)}", one=one)
    assert [len(tensor.dims) for tensor in simplified(model).graph.initializer] == [2]


LENGTH, HEADS, SIZE = 13, 2, 8


JOINT = HEADS * SIZE


# As PyTorch exports it: queries, keys and values first, then heads, tokens and places.
ORDER = (2, 0, 3, 1, 4)


def gathers(indices: dict, axis: int = 0, opset: int = 13, more: str = "") -> ModelProto:
    """Gathers from a transposed product, and ``more`` outputs."""
    taken = " ".join(f"{name} = Gather <axis = {axis}> (heads, {name}_at)" for name in indices)
    outputs = ", ".join(f"float[] {name}" for name in indices)
    model = model_of(
        f"""(float[1,{LENGTH},{JOINT}] x) => ({outputs}{more}) {{
            joint = MatMul (x, weight)
            split = Reshape (joint, shape)
            heads = Transpose <perm = {[*ORDER]}> (split)
            {taken}
        }}""",
        opset,
        weight=random_weight(np.random.default_rng(0), JOINT, 3 * JOINT),
        shape=[1, LENGTH, 3, HEADS, SIZE],
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
