"""Padded convolutions, products and softmaxes give the same results."""

from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from fewtune.model.import_model import read_lowered
from fewtune.model.lower import lower
from fewtune.model.passes import winograd
from fewtune.model.passes.padding import Product, filters_gain
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of
from fewtune.task.analysis import call_counts
from fewtune.task.extract import extract_tasks
from tests import tuned_tiny
from tests.made.compiled import error_of, scheduled
from tests.made.onnx_text import model_of
from tests.model.passes.test_winograd import convolution_model
from tests.model.test_import_model import imported
from tests.onnx_graph.test_views import simplified
from tests.tiny_models import random_weight

BOUND = 2e-5
WIDE, NARROW = CpuTraits(64, 28, 3, 2, 4), CpuTraits(32, 14, 1, 2, 8)


@pytest.mark.parametrize(
    ("size", "channels", "filters", "lanes", "gains"),
    [
        (13, 512, 1000, 16, True),  # SqueezeNet's classifier: 125 half vectors
        (13, 512, 1000, 8, False),  # 125 full ones
        (52, 256, 75, 16, True),  # a detector's head: no vector at all
        (
            56,
            144,
            24,
            16,
            False,
        ),  # half vectors, but a third of padding, and one more pass over the result
        (56, 64, 64, 16, False),  # four full vectors
        (13, 16, 8, 16, False),  # not worth another kernel
        (89, 252, 12, 16, True),  # a pitch tracker's: quarter vectors
        (89, 252, 12, 8, True),
    ],
)
def test_filters_are_padded_where_that_is_expected_to_pay(size, channels, filters, lanes, gains):
    assert filters_gain(filters, channels, size**2, size**2 * channels, lanes) is gains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "settings"),
    [
        (40, {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]}),
        (40, {"strides": [2, 2]}),
        # No window reads the last column.
        (80, {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0], "strides": [2, 2]}),
    ],
)
def test_a_padded_convolution_gives_the_same_result(side, settings, tmp_path):
    model = convolution_model((side, side), channels=128, filters=75, **settings)
    report = imported(model, tmp_path)
    assert (report.padded, report.winograd) == (1, 0)
    assert report.max_relative_error < BOUND
    lowered = read_lowered(tmp_path / "import")
    tasks = {task.info.operator: task.info for task in extract_tasks(lowered)}
    assert tasks["conv2d"].shapes[-1][-1] == 80
    # The data is padded as before, and not cut.
    assert f"T.int64({side - 1})" not in lowered.script()
    # The kernel that drops the padding computes bias and activation.
    (rest,) = [name for name in call_counts(lowered) if "unpadded" in name]
    assert "add" in rest
    assert "relu" in rest


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 2])
def test_a_result_of_a_prime_number_of_columns_is_padded(side, tmp_path):
    settings = {"kernel_shape": [1, 3], "strides": [1, 2], "pads": [0, side, 0, side]}
    # The result has 257 columns.
    model = convolution_model((1, 515 - 2 * side), channels=256, filters=256, **settings)
    report = imported(model, tmp_path)
    assert report.padded == 1
    assert report.max_relative_error < BOUND
    lowered = read_lowered(tmp_path / "import")
    tasks = {task.info.operator: task.info for task in extract_tasks(lowered)}
    assert tasks["conv2d"].shapes[-1][-2] > 257
    assert error_of(model, scheduled(lowered)) < BOUND


@pytest.mark.slow
def test_padding_stays_if_transforms_are_left_out(tmp_path):
    generator = np.random.default_rng(0)
    model = model_of(
        """(float[1,64,40,40] x) => (float[] y) {
            between = Conv <pads = [1, 1, 1, 1]> (x, first)
            y = Conv (between, second)
        }""",
        first=random_weight(generator, 64, 64, 3, 3),
        second=random_weight(generator, 75, 64, 1, 1),
    )
    wrong = {m: (b, g, 2 * np.array(a)) for m, (b, g, a) in winograd.TRANSFORMS.items()}
    with mock.patch.object(winograd, "TRANSFORMS", wrong):
        report = imported(model, tmp_path)
    assert (report.layout, report.winograd, report.padded) == ("NHWC", 0, 1)
    assert len(report.left_out) == 1
    assert report.left_out[0].startswith("winograd: ")


def attention(tokens: int, size: int = 64, heads: int = 3) -> ModelProto:
    """Scores, their softmax, and the mixture of the values."""
    inputs = ", ".join(f"float[1,{heads},{tokens},{size}] {name}" for name in "qkv")
    # A model without weights is refused: no check of it could show a fault.
    return model_of(
        f"""({inputs}) => (float[] z) {{
            turned = Transpose <perm = [0, 1, 3, 2]> (k)
            scores = MatMul (q, turned)
            weights = Softmax <axis = -1> (scores)
            y = MatMul (weights, v)
            z = Add (y, bias)
        }}""",
        13,
        bias=random_weight(np.random.default_rng(0), size),
    )


@pytest.mark.parametrize("traits", [WIDE, NARROW], ids=["avx512", "avx2"])
@pytest.mark.parametrize(
    ("sizes", "is_weighted", "gains"),
    [
        ((3, 197, 64, 197), False, True),  # ViT-Tiny's scores
        ((3, 197, 197, 64), False, True),  # and what they mix
        ((16, 257, 64, 257), False, True),  # CLIP's, patches of 14
        ((4, 128, 64, 128), False, False),  # full tiles as they are
        ((12, 1, 64, 197), False, False),  # one token more: a product with a vector
        ((1, 7, 7, 7), False, False),  # not worth three more kernels
        ((1, 20, 1024, 8210), True, True),  # characters of a captcha reader
        ((1, 40, 120, 6625), True, True),  # and of PP-OCR
        ((1, 1, 2048, 1000), True, False),  # a classifier reads its weights once
        ((1, 128, 384, 1536), True, False),  # full vectors as they are
        ((1, 197, 384, 1536), True, True),  # a prime number of rows
        ((1, 197, 192, 10), True, False),  # few columns
    ],
)
def test_products_are_padded_where_that_is_expected_to_pay(traits, sizes, is_weighted, gains):
    product = Product(*sizes, traits, is_weighted)
    assert product.gains is gains
    assert product.padded_columns % traits.lanes("float32") == 0
    assert Product(*sizes, traits, is_weighted, is_one_matrix=False).padded_rows == product.rows


@pytest.mark.slow
def test_padded_attention_gives_the_same_result(tmp_path):
    tokens = 197
    model = attention(tokens)
    report = imported(model, tmp_path)
    assert report.padded == 2
    assert report.max_relative_error < BOUND
    lowered = read_lowered(tmp_path / "import")
    target = tuned_tiny.target()
    lanes = CpuTraits.of(target).lanes("float32")
    tasks = [task.info for task in extract_tasks(lowered)]
    products = {task.shapes[-1][-1]: task.shapes for task in tasks if task.anchor == "matmul"}
    assert set(products) == {-(-tokens // lanes) * lanes, 64}
    assert all(shapes[0][-2] > tokens for shapes in products.values())
    # The transpose of the keys pads them; the bias is added without padding.
    kernels = list(call_counts(lowered))
    assert any("transpose" in name and "padded" in name for name in kernels)
    assert any("unpadded" in name and "add" in name for name in kernels)
    assert error_of(model, scheduled(lowered)) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "rows"), [(2, 20), (1, 197)])
def test_a_padded_product_with_weights_gives_the_same_result(batch, rows, tmp_path):
    generator = np.random.default_rng(0)
    weights = {"w": random_weight(generator, 64, 3001), "c": random_weight(generator, 3001)}
    text = f"(float[{batch},{rows},64] x) => (float[] y) {{m = MatMul (x, w) y = Add (m, c)}}"
    model = model_of(text, 13, **weights)
    report = imported(model, tmp_path)
    assert report.padded == 1
    assert report.max_relative_error < BOUND


def softmax_model(shape: tuple[int, ...], axis: int = -1) -> ModelProto:
    """A softmax over numbers of many magnitudes."""
    text = f"""(float{list(shape)} x) => (float[] y) {{
        scaled = Mul (x, factor)
        y = Softmax <axis = {axis}> (scaled)
    }}"""
    return model_of(text, 13, factor=20 * random_weight(np.random.default_rng(0), *shape))


def rows_of(module: tvm.IRModule) -> set[int]:
    """Extents of the last axes of the buffers that a module's softmax writes."""
    (function,) = (f for v, f in module.functions_items() if v.name_hint == "softmax")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    written = [schedule.get(handle).writes[0].source for handle in blocks_of(schedule)]
    return {int(source.shape[-1]) for source in written}


@pytest.mark.parametrize("length", [17, 197])
def test_rows_that_fill_no_vectors_are_padded(length):
    model = softmax_model((2, 3, length))
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    lanes = CpuTraits.of(tuned_tiny.target()).lanes("float32")
    assert -(-length // lanes) * lanes in rows_of(module)
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.parametrize("lowest", [-1e30, np.finfo(np.float32).min], ids=["low", "lowest"])
def test_rows_of_very_negative_numbers_are_right(lowest):
    model = softmax_model((1, 4, 19))
    nodes = [*model.graph.node]
    nodes[0].op_type = "Add"
    weight = model.graph.initializer[0]
    numbers = np.full((1, 4, 19), lowest, np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(numbers, weight.name))
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.parametrize(("shape", "axis"), [((2, 64), -1), ((2, 7), -1), ((1, 19, 32), 1)])
def test_other_softmaxes_are_lowered_by_tvm(shape, axis):
    model = softmax_model(shape, axis)
    module = lower(simplified(model), tuned_tiny.target(), "NHWC")
    assert rows_of(module) <= {*shape}
    assert error_of(model, scheduled(module)) < BOUND
