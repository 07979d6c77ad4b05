"""Padded products give the same results, from full register tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.model.import_model import read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.model.passes.pad_matmul import Product
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.task.calls import call_counts
from fewtune.task.extract import extract_tasks
from tests import tuned_tiny
from tests.model.passes.test_winograd import error_of, scheduled
from tests.model.test_import_model import imported
from tests.tiny_models import make_model, random_weight

BOUND = 1e-5
WIDE, NARROW = CpuTraits(64, 28, 3, 2, 4), CpuTraits(32, 14, 1, 2, 8)


def attention(tokens: int, size: int = 64, heads: int = 3) -> ModelProto:
    """Scores, their softmax, and the mixture of the values."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], name="turned", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"], name="scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], name="weights", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"], name="y"),
    ]
    inputs = {name: [1, heads, tokens, size] for name in "qkv"}
    # A model without weights is refused: no check of it could show a fault.
    nodes.append(helper.make_node("Add", ["y", "bias"], ["z"], name="z"))
    bias = {"bias": random_weight(np.random.default_rng(0), size)}
    return make_model(nodes, inputs, {"z": None}, bias, opset=13)


@pytest.mark.parametrize("traits", [WIDE, NARROW], ids=["avx512", "avx2"])
@pytest.mark.parametrize(
    ("count", "rows", "depth", "columns", "gains"),
    [
        (3, 197, 64, 197, True),  # ViT-Tiny's scores
        (3, 197, 197, 64, True),  # and what they mix
        (16, 257, 64, 257, True),  # CLIP's, patches of 14
        (4, 128, 64, 128, False),  # full tiles as they are
        (12, 1, 64, 197, False),  # one token more: a product with a vector
        (1, 7, 7, 7, False),  # not worth three more kernels
    ],
)
def test_products_are_padded_where_that_is_expected_to_pay(
    traits: CpuTraits, count: int, rows: int, depth: int, columns: int, gains: bool
) -> None:
    assert Product(count, rows, depth, columns, traits).gains is gains


def test_padding_is_counted() -> None:
    product = Product(3, 197, 64, 197, WIDE)
    assert (product.padded_rows, product.padded_columns) == (198, 208)
    assert product.added_flops == 2 * 3 * 64 * (198 * 208 - 197 * 197)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [197, 211])
def test_padded_attention_gives_the_same_result(tokens: int, tmp_path: Path) -> None:
    model = attention(tokens)
    report = imported(model, tmp_path)
    assert report.padded == 2
    assert report.saved_flops < 0
    assert report.max_relative_error < BOUND
    lowered = read_lowered(tmp_path / "import")
    target = tuned_tiny.target()
    lanes = CpuTraits.of(target).lanes("float32")
    tasks = [task.info for task in extract_tasks(lowered, target)]
    products = {task.shapes[-1][-1]: task.shapes for task in tasks if task.anchor == "matmul"}
    assert set(products) == {-(-tokens // lanes) * lanes, 64}
    assert all(shapes[0][-2] > tokens for shapes in products.values())
    # The transpose of the keys pads them; the bias is added without padding.
    kernels = list(call_counts(lowered))
    assert any("transpose" in name and "padded" in name for name in kernels)
    assert any("unpadded" in name and "add" in name for name in kernels)
    assert error_of(model, scheduled(lowered)) < BOUND


def test_never_pads_no_products(tmp_path: Path) -> None:
    report = imported(attention(197), tmp_path, ImportOptions(pad_filters="never"))
    assert report.padded == 0
    kernels = list(call_counts(read_lowered(tmp_path / "import")))
    assert not [name for name in kernels if "padded" in name and "softmax" not in name]


def test_weights_are_widened_and_a_shared_operand_is_left_alone(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["constant"], name="constant"),
        helper.make_node("MatMul", ["constant", "other"], ["y"], name="y"),
    ]
    inputs = {"x": [3, 197, 64], "other": [197, 197]}
    weight = {"weight": random_weight(generator, 64, 197)}
    model = make_model(nodes, inputs, {"y": None}, weight, opset=13)
    report = imported(model, tmp_path)
    assert report.padded == 1
    assert report.max_relative_error < BOUND


@pytest.mark.parametrize("traits", [WIDE, NARROW], ids=["avx512", "avx2"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "gains"),
    [
        (20, 1024, 8210, True),  # characters of a captcha reader
        (40, 120, 6625, True),  # and of PP-OCR
        (1, 2048, 1000, False),  # a classifier reads its weights once
        (1, 4096, 1001, False),
        (128, 384, 1536, False),  # full vectors as they are
        (197, 192, 10, False),  # few columns
    ],
)
def test_weights_are_widened_where_that_is_expected_to_pay(
    traits: CpuTraits, rows: int, depth: int, columns: int, gains: bool
) -> None:
    product = Product(1, rows, depth, columns, traits, is_weighted=True)
    assert product.gains is gains
    assert product.padded_rows == rows
    assert product.padded_columns % traits.lanes("float32") == 0
    assert product.padded_columns < 1.02 * columns or columns < 1000


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[40, 64], [2, 20, 64]])
def test_widened_weights_give_the_same_result(shape: list[int], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weights = {"w": random_weight(generator, 64, 3001), "c": random_weight(generator, 3001)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="classes"),
        helper.make_node("Add", ["m", "c"], ["y"], name="offset"),
    ]
    model = make_model(nodes, {"x": shape}, {"y": None}, weights, opset=13)
    report = imported(model, tmp_path)
    assert report.padded == 1
    assert report.max_relative_error < BOUND
