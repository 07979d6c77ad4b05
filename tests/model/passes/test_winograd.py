"""Winograd's transforms: where they are chosen, and that the result is the convolution's."""

from functools import cache
from unittest import mock

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.model.import_model import read_lowered
from fewtune.model.passes import winograd
from fewtune.options import ImportOptions
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of
from fewtune.schedule.defaults import default_schedule, schedule_winograd
from fewtune.schedule.tiling import padded_rows
from fewtune.task.analysis import call_counts
from fewtune.task.extract import extract_tasks
from tests import tuned_tiny
from tests.made.compiled import error_of, lowered, scheduled
from tests.made.onnx_text import attributes as text_of
from tests.made.onnx_text import model_of
from tests.model.test_import_model import imported
from tests.tiny_models import random_weight

pytestmark = pytest.mark.slow

BOUND = 2e-5
AVX2, AVX512 = CpuTraits(32, 14, 1, 2, 8), CpuTraits(64, 28, 3, 2, 4)


def convolution_model(
    size: tuple[int, int],
    channels: int = 16,
    filters: int = 32,
    residual: bool = False,
    batch: int = 1,
    **attributes: object,
) -> ModelProto:
    """A convolution with bias and activation; with ``residual``, its input is added as well."""
    settings = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], **attributes}
    generator = np.random.default_rng(1)
    group = int(settings.get("group", 1))
    weight = random_weight(generator, filters, channels // group, *settings["kernel_shape"])
    return model_of(
        f"""(float{[batch, channels, *size]} x) => (float[] y) {{
            [conv] conv = Conv {text_of(**settings)} (x, weight, bias)
            [add] sum = {"Add (conv, x)" if residual else "Identity (conv)"}
            [relu] y = Relu (sum)
        }}""",
        weight=weight,
        bias=generator.standard_normal(filters).astype(np.float32),
    )


def lowered_with(model: ModelProto, m: int) -> tvm.IRModule:
    with mock.patch.object(winograd, "best_tile", lambda _: m):
        return lowered(model, "NHWC", None, winograd.Winograd())


@cache
def plain() -> tvm.IRModule:
    return lowered_with(convolution_model((8, 8)), 4)


@pytest.mark.parametrize(
    ("m", "size", "given"),
    [
        (4, (8, 8), {}),
        (2, (7, 13), {}),
        (4, (9, 10), {"pads": [2, 0, 1, 1]}),
        (2, (6, 9), {"batch": 3}),
    ],
)
def test_any_size_padding_and_batch_agree_with_onnxruntime(m, size, given):
    model = convolution_model(size, **given)
    assert error_of(model, scheduled(lowered_with(model, m))) < BOUND


@pytest.mark.parametrize(("channels", "filters"), [(5, 7), (16, 42)])
def test_channels_that_fill_no_vector_agree(channels, filters):
    model = convolution_model((6, 6), channels=channels, filters=filters)
    module = lowered_with(model, 2)
    tasks = extract_tasks(module)
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    # Filters are padded to vectors.
    assert product.info.shapes[1] == [16, channels, 16 if filters == 7 else 48]
    for task in tasks:
        assert default_schedule(task.mod, tuned_tiny.target()) is not None
    assert error_of(model, scheduled(module)) < BOUND


def test_rows_added_to_fill_registers_change_nothing(monkeypatch):
    model = convolution_model((28, 27))
    monkeypatch.setattr(CpuTraits, "of", staticmethod(lambda _: AVX2))
    module = lowered_with(model, 4)
    tasks = extract_tasks(module)
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    # 49 tiles.
    assert product.info.shapes == [[36, 50, 16], [36, 16, 32], [36, 50, 32]]
    assert product.info.flops == 2 * 36 * 50 * 16 * 32
    assert error_of(model, scheduled(module)) < BOUND


@pytest.mark.parametrize(
    ("traits", "rows", "padded"),
    [
        (AVX2, 49, 50),  # five rows of two vectors
        (AVX2, 98, 98),  # fourteen of one
        (AVX2, 169, 169),  # thirteen of one
        (AVX512, 49, 49),  # seven of two
        (AVX512, 841, 845),  # thirteen of two; 29 leave no register for an operand
    ],
)
def test_rows_are_added_where_registers_hold_no_good_tile(traits, rows, padded):
    assert padded_rows(rows, 128, traits, "float32") == padded


def test_a_residual_is_fused_into_the_output_transform():
    model = convolution_model((8, 8), channels=32, residual=True)
    module = lowered_with(model, 4)
    kernels = [name for name in call_counts(module) if winograd.OUTPUT in name]
    assert len(kernels) == 1
    assert "add" in kernels[0]
    assert "relu" in kernels[0]
    assert error_of(model, scheduled(module)) < BOUND


def test_a_leaky_activation_is_folded_into_the_output_transform():
    model = convolution_model((8, 8), channels=32)
    (relu,) = [node for node in model.graph.node if node.op_type == "Relu"]
    relu.op_type = "LeakyRelu"
    module = lowered_with(model, 4)
    tasks = {task.info.name: task for task in extract_tasks(module)}
    (name,) = [name for name in tasks if winograd.OUTPUT in name]
    schedule = tvm.s_tir.Schedule(tasks[name].mod)
    assert len(blocks_of(schedule)) > 3
    assert schedule_winograd(schedule, CpuTraits.of(tuned_tiny.target()))
    assert len(blocks_of(schedule)) == 2
    assert error_of(model, scheduled(module)) < BOUND


def test_the_product_is_a_task_with_a_quarter_of_the_multiplications():
    tasks = extract_tasks(plain())
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    # 8 x 8 outputs of 9 products each are four tiles of 36.
    assert product.info.shapes[0] == [36, 4, 16]
    assert product.info.flops == 2 * 8 * 8 * 9 * 16 * 32 / 4
    assert [int(place) for place in product.mod["main"].attrs["layout_free_buffers"]] == [1]


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
        {"group": 16, "filters": 16},
        {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]},
    ],
)
def test_other_convolutions_are_left_as_they_are(attributes):
    module = lowered_with(convolution_model((8, 8), **attributes), 4)
    assert not [name for name in call_counts(module) if "winograd" in name]


def convolution(size: int, channels: int, filters: int) -> winograd.Convolution:
    return winograd.Convolution((1, size, size, channels), filters, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("size", "channels", "filters", "m"),
    [
        (28, 128, 128, 4),  # measured 2.4 times as fast as direct convolution (2 cores, AVX-512)
        # Weights in memory, on an EPYC and on an Emerald Rapids, without the transforms' time:
        (14, 256, 256, 2),  # 1.5 and 1.8 times as fast, with tiles of 4 1.7 and 1.5 times
        (7, 512, 512, 2),  # 1.3 and 1.03 times; tiles of 4 need 38 MB of weights, and are slower
        (14, 512, 512, 2),  # 2.1 times on the latter, with tiles of 4 1.6 times
        (13, 64, 256, 2),  # 1.5 times on the latter, with tiles of 4 1.02 times
        (8, 16, 16, 0),  # three kernels cost more than they save
        (224, 3, 64, 0),  # three channels fill no vector
        (1024, 64, 64, 0),  # 1.2 GB of tiles and products
        (32, 1024, 84, 4),  # a detector's head, on 96 columns
    ],
)
def test_the_tile_of_the_lowest_cost_is_chosen(size, channels, filters, m):
    assert winograd.best_tile(convolution(size, channels, filters)) == m


def test_the_import_reports_what_it_transformed(tmp_path):
    model = convolution_model((28, 28), channels=128, filters=128)
    report = imported(model, tmp_path, ImportOptions(most_growth=5))
    assert report.winograd == 1
    assert report.max_relative_error < BOUND
    names = call_counts(read_lowered(tmp_path / "import"))
    assert any("winograd_matmul" in name for name in names)


def test_transformed_weights_are_bounded_and_the_report_says_so(tmp_path):
    model = convolution_model((28, 28), channels=128, filters=128)
    report = imported(model, tmp_path)
    # Tiles of 4 hold 36 weights for 9, tiles of 2 hold 16.
    functions = read_lowered(tmp_path / "import").functions_items()
    (product,) = (each for name, each in functions if "winograd_matmul" in name.name_hint)
    assert product.params[1].shape[0] == 16
    assert ["compile.most_growth" in line for line in report.left_out] == [True]


def test_the_least_time_for_the_bytes_is_given_up_first():
    counts = {convolution(56, 64, 64): 3, convolution(14, 256, 256): 2}
    best = {each: winograd.best_tile(each) for each in counts}
    assert winograd.tiles_within(counts, float("inf")) == best
    small, large = winograd.tiles_within(counts, 2**21).values()
    # The large one's weights are 16 times as large, and save less time for a byte.
    assert (small, large) == (4, 0)
    assert set(winograd.tiles_within(counts, 0).values()) == {0}
