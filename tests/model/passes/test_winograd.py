"""Winograd's transforms: the same result as the convolution itself, in fewer multiplications."""

import re
from functools import cache

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.model.lower import lower
from fewtune.model.passes import winograd
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.tvm import tvm
from fewtune.schedule.blocks import blocks_of
from fewtune.schedule.defaults.default import (
    apply_default_schedules,
    default_schedule,
    schedule_winograd,
)
from fewtune.schedule.tiling import padded_rows
from fewtune.task.analysis import call_counts
from fewtune.task.extract import extract_tasks
from fewtune.verify.session import random_inputs, run_onnxruntime, tensor_specs
from tests import tuned_tiny
from tests.made.outputs import relative_error
from tests.tiny_models import make_model, random_weight

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
    weights = {
        "weight": random_weight(generator, filters, channels // group, *settings["kernel_shape"]),
        "bias": generator.standard_normal(filters).astype(np.float32),
    }
    nodes = [helper.make_node("Conv", ["x", "weight", "bias"], ["conv"], name="conv", **settings)]
    nodes.append(
        helper.make_node("Add", ["conv", "x"], ["sum"], name="add")
        if residual
        else helper.make_node("Identity", ["conv"], ["sum"], name="identity")
    )
    nodes.append(helper.make_node("Relu", ["sum"], ["y"], name="relu"))
    return make_model(nodes, {"x": [batch, channels, *size]}, {"y": None}, weights)


def lowered_with(model: ModelProto, m: int) -> tvm.IRModule:
    simplified = prepare.simplify(bind_shapes(model, {}, {}))
    return lower(simplified, tuned_tiny.target(), "NHWC", winograd.Winograd(lambda _: m))


def error_of(model: ModelProto, module: tvm.IRModule) -> float:
    bound = bind_shapes(model, {}, {})
    inputs, _ = tensor_specs(bound)
    feeds = random_inputs(inputs, 0)
    expected = run_onnxruntime(bound, feeds, 1)
    target = tuned_tiny.target()
    built = CompiledModel(build_executable(module, target), target)
    return relative_error(built.outputs([feeds[spec.name] for spec in inputs]), expected)


def scheduled(module: tvm.IRModule) -> tvm.IRModule:
    return apply_default_schedules(module, list(call_counts(module)), tuned_tiny.target())


@cache
def plain() -> tvm.IRModule:
    return lowered_with(convolution_model((8, 8)), 4)


@pytest.mark.parametrize(
    ("m", "size", "given"),
    [
        (4, (8, 8), {}),
        (2, (7, 13), {}),
        (4, (5, 19), {}),
        (2, (9, 10), {"pads": [0, 0, 0, 0]}),
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


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_rows_added_to_fill_registers_change_nothing(is_scheduled, monkeypatch):
    model = convolution_model((28, 27))
    monkeypatch.setattr(CpuTraits, "of", staticmethod(lambda _: AVX2))
    module = lowered_with(model, 4)
    tasks = extract_tasks(module)
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    # 49 tiles.
    assert product.info.shapes == [[36, 50, 16], [36, 16, 32], [36, 50, 32]]
    assert product.info.flops == 2 * 36 * 50 * 16 * 32
    assert error_of(model, scheduled(module) if is_scheduled else module) < BOUND


def test_rows_are_added_after_all_images(monkeypatch):
    monkeypatch.setattr(winograd, "padded_rows", lambda rows, *_: rows + 3)
    model = convolution_model((6, 9), batch=3)
    module = lowered_with(model, 4)
    tasks = extract_tasks(module)
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    assert product.info.shapes[0] == [36, 3 * 2 * 3 + 3, 16]
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


def test_unscheduled_transforms_agree_too():
    assert error_of(convolution_model((8, 8)), plain()) < BOUND


def test_the_product_is_a_task_with_a_quarter_of_the_multiplications():
    tasks = extract_tasks(plain())
    (product,) = [task for task in tasks if task.info.operator == "batch_matmul"]
    # 8 x 8 outputs of 9 products each are four tiles of 36.
    assert product.info.shapes[0] == [36, 4, 16]
    assert product.info.flops == 2 * 8 * 8 * 9 * 16 * 32 / 4
    assert [int(place) for place in product.mod["main"].attrs["layout_free_buffers"]] == [1]


def test_transforms_run_on_all_threads_and_lanes():
    model = convolution_model((32, 32), channels=64)
    tasks = {t.info.name: t for t in extract_tasks(lowered_with(model, 4))}
    transforms = [name for name in tasks if winograd.INPUT in name or winograd.OUTPUT in name]
    assert len(transforms) == 2
    for name in transforms:
        schedule = default_schedule(tasks[name].mod, tuned_tiny.target())
        text = schedule.mod.script()
        assert "T.parallel" in text
        assert "T.vectorized" in text
        assert "T.unroll" in text


@pytest.mark.parametrize(("filters", "lanes"), [(24, 8), (126, 2), (21, 0)])
def test_an_output_that_fills_no_vector_gets_a_part_of_one(filters, lanes):
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    model = convolution_model((8, 8), channels=64, filters=filters)
    simplified = prepare.simplify(bind_shapes(model, {}, {}))
    module = lower(simplified, target, "NHWC", winograd.Winograd(lambda _: 4))
    (output,) = [t for t in extract_tasks(module) if winograd.OUTPUT in t.info.name]
    schedule = default_schedule(output.mod, target)
    assert schedule is not None
    text = schedule.mod.script()
    found = {int(extent) for extent in re.findall(r"T\.vectorized\(T\.int64\((\d+)\)\)", text)}
    assert found == ({lanes} if lanes else set())


@pytest.mark.parametrize(
    "attributes",
    [
        {"strides": [2, 2]},
        {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
        {"group": 16, "filters": 16},
        {"kernel_shape": [1, 1], "pads": [0, 0, 0, 0]},
        {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
    ],
)
def test_other_convolutions_are_left_as_they_are(attributes):
    module = lowered_with(convolution_model((8, 8), **attributes), 4)
    assert not [name for name in call_counts(module) if "winograd" in name]


def test_weights_are_summed_in_double_precision():
    weights = np.random.default_rng(0).standard_normal((3, 3, 2, 3)).astype(np.float32)
    for m in (2, 4):
        transformed = winograd.transformed_weights(weights, m)
        assert transformed.shape == ((m + 2) ** 2, 2, 16)
        assert transformed.dtype == np.float32
        # The last place is the last weight itself; beyond the filters there is nothing.
        assert np.array_equal(transformed[-1][:, :3], weights[2, 2])
        assert not transformed[:, :, 3:].any()
