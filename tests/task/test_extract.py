"""Tasks of real lowered models: families, costs, weights, and the files that hold them."""

import json
from functools import cache
from typing import Literal

import numpy as np
import pytest
from onnx import ModelProto

from fewtune.artifacts import cost_flops
from fewtune.errors import InputError
from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.options import SelectOptions
from fewtune.runtime.tvm import ms, tvm
from fewtune.selection.select import select_tasks
from fewtune.task.analysis import analyse
from fewtune.task.extract import (
    MODULES,
    SEARCHED_OPERATORS,
    Task,
    extract_tasks,
    read_tasks,
    workload_hash,
    write_tasks,
)
from tests.made.onnx_text import model_of
from tests.quantized_models import quantized_network
from tests.tiny_models import (
    elementwise_model,
    random_weight,
    softmax_model,
)

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def lowered(model: ModelProto, layout: Literal["NHWC", "NCHW"] = "NHWC") -> tvm.IRModule:
    return lower(prepare.simplify(bind_shapes(model, {}, {})), TARGET, layout)


@cache
def tiny() -> tvm.IRModule:
    return lowered(softmax_model())


def convolution(
    image: list[int], weight: list[int], groups: int = 1, operator: str = "Conv"
) -> ModelProto:
    """A padded convolution with bias and ReLU."""
    random, kernel = np.random.default_rng(0), weight[2:]
    filters = weight[0] if operator == "Conv" else weight[1] * groups
    given = f"group = {groups}, pads = {[size // 2 for size in kernel] * 2}"
    return model_of(
        f"(float{image} x) => (float[] y) {{c = {operator} <{given}> (x, w, b) y = Relu (c)}}",
        w=random_weight(random, *weight),
        b=random_weight(random, filters),
    )


def layers() -> ModelProto:
    """Three equal convolutions."""
    random = np.random.default_rng(0)
    nodes = "a = Conv (x, w0) b = Conv (a, w1) y = Conv (b, w2)"
    weights = {f"w{layer}": random_weight(random, 8, 8, 1, 1) for layer in range(3)}
    return model_of(f"(float[1,8,8,8] x) => (float[] y) {{{nodes}}}", **weights)


def product(left: list[int], right: list[int]) -> ModelProto:
    return model_of(f"(float{left} l, float{right} r) => (float[] y) {{y = MatMul (l, r)}}")


def searched(tasks: list[Task]) -> list[Task]:
    return [task for task in tasks if task.info.operator in SEARCHED_OPERATORS]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("model", "family"),
    [
        (convolution([1, 8, 8, 8], [16, 8, 3, 3]), "conv2d"),
        # Sums as many products as its bias has values, or as its weight has elements.
        (convolution([1, 16, 8, 8], [16, 16, 1, 1]), "conv2d"),
        (convolution([1, 16, 8, 8], [1, 16, 1, 1]), "conv2d"),
        # One input channel, but each output sees it: no group.
        (convolution([1, 1, 8, 8], [16, 1, 3, 3]), "conv2d"),
        (convolution([1, 16, 8, 8], [16, 1, 3, 3], 16), "depthwise_conv2d"),
        (convolution([1, 16, 8, 8], [16, 4, 3, 3], 4), "group_conv2d"),
        (convolution([1, 8, 20], [16, 8, 3]), "conv2d"),
        (convolution([1, 8, 20], [16, 2, 3], 4), "group_conv2d"),
        (convolution([1, 4, 6, 6, 6], [8, 4, 3, 3, 3]), "conv3d"),
        (convolution([1, 8, 6, 6], [8, 2, 3, 3], 2, "ConvTranspose"), "conv2d_transpose"),
        (product([4, 16], [16, 8]), "dense"),
        (product([4, 8, 16], [4, 16, 8]), "batch_matmul"),
    ],
)
def test_a_task_and_its_logs_workload_have_the_same_family(model, family, layout):
    """A log keeps no kernel's name; the module tells the family of all that is searched."""
    tasks = extract_tasks(lowered(model, layout))
    assert {task.info.operator for task in searched(tasks)} == {family}
    for task in tasks:
        told = analyse(None, task.mod).operator
        assert told == family if task in searched(tasks) else told not in SEARCHED_OPERATORS


@pytest.mark.parametrize(
    ("left", "right", "operator"),
    [
        ([4, 16], [16, 8], "dense"),
        ([4, 8, 16], [16, 8], "dense"),
        ([1, 8, 16], [1, 16, 8], "dense"),
        ([4, 8, 16], [4, 16, 8], "batch_matmul"),
        ([1, 4, 8, 16], [1, 4, 16, 8], "batch_matmul"),
    ],
)
def test_family_and_cost_of_a_product(left, right, operator):
    (task,) = extract_tasks(lowered(product(left, right)))
    output = [*left[:-1], right[-1]]
    assert task.info.operator == operator
    assert task.info.flops == 2 * np.prod(left) * right[-1]
    assert task.info.bytes == 4 * (np.prod(left) + np.prod(right) + np.prod(output))
    assert task.info.shapes == [left, right, output]


def test_cost_of_a_convolution():
    (task,) = searched(extract_tasks(lowered(convolution([1, 8, 8, 8], [16, 8, 3, 3]))))
    # Padding to 10x10x8, 8x8x16 sums of 3x3x8 products, bias and ReLU on each of them.
    assert task.info.flops == 10 * 10 * 8 + 2 * (8 * 8 * 16) * (3 * 3 * 8) + 2 * (8 * 8 * 16)
    assert task.info.shapes == [[1, 8, 8, 8], [3, 3, 8, 16], [1, 1, 1, 16], [1, 8, 8, 16]]
    assert task.info.dtype == "float32"


def test_tasks_of_a_model():
    infos = [task.info for task in extract_tasks(tiny())]
    families = sorted(info.operator for info in infos)
    assert families.count("conv2d") == 4
    assert {"conv2d", "dense", "pool", "softmax"} <= set(families)
    assert sum(info.share for info in infos) == pytest.approx(1.0)
    assert infos == sorted(infos, key=lambda info: (-info.share, info.name))


def test_tasks_are_those_of_metaschedule():
    for module in (tiny(), lowered(layers())):
        ours = {task.info.workload: task.info.weight for task in extract_tasks(module)}
        theirs = ms.relax_integration.extract_tasks(module, TARGET)
        assert {workload_hash(it.dispatched[0]): it.weight for it in theirs} == ours
    assert 3 in ours.values()


def test_nothing_worth_tuning():
    tasks = extract_tasks(lowered(elementwise_model()))
    assert [task.info.operator for task in tasks] == ["elementwise"]
    selection, _ = select_tasks(
        tasks, SelectOptions(), target=TARGET, model="plain", strategy="selective"
    )
    assert selection.clusters == []
    assert selection.set_aside == [tasks[0].info.name]
    assert extract_tasks(tvm.IRModule({"main": tiny()["main"]})) == []


def test_files_give_the_tasks_back(tmp_path):
    tasks = extract_tasks(tiny())
    write_tasks(tasks, "tiny", "llvm", tmp_path)
    back = read_tasks(tmp_path)
    assert [task.info for task in back] == [task.info for task in tasks]
    assert [workload_hash(task.mod) for task in back] == [task.info.workload for task in tasks]
    for damaged in ("{", "{}", "[]", json.dumps({task.info.name: None for task in tasks})):
        (tmp_path / MODULES).write_text(damaged)
        with pytest.raises(InputError, match="run that stage again"):
            read_tasks(tmp_path)


@pytest.mark.slow
def test_products_of_bytes_count_every_product_and_weigh_a_quarter(tmp_path):
    model, _ = quantized_network(tmp_path)
    module = lower(prepare.simplify(bind_shapes(model, {}, {})), TARGET, "NHWC")
    costs = {task.info.name: task.info for task in extract_tasks(module)}
    (info,) = (
        each for each in costs.values() if each.shapes[0] == [1, 8, 8, 16] and each.byte_flops
    )
    # A 1x1 convolution of 16 to 17 channels, these filled up to vectors.
    filters = info.shapes[1][-1]
    assert info.byte_flops == 2 * 8 * 8 * 16 * filters
    assert info.flops >= info.byte_flops
    assert cost_flops(info.flops, info.byte_flops) == info.flops - 0.75 * info.byte_flops
    assert all(each.byte_flops == 0 for each in costs.values() if "integer" not in each.name)
