"""Tasks of real lowered models: families, costs, weights, and the files that hold them."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.artifacts import cost_flops
from fewtune.errors import InputError
from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.tvm import ms, tvm
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.task.analysis import analyse
from fewtune.task.extract import (
    MODULES,
    SEARCHED_OPERATORS,
    Task,
    extract_tasks,
    kernels,
    read_tasks,
    workload_hash,
    write_tasks,
)
from tests.quantized_models import quantized_network
from tests.tiny_models import (
    elementwise_model,
    make_model,
    random_weight,
    softmax_model,
    tiny_convolutional_model,
)

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
ROOT = Path(__file__).parents[2]


def lowered(model: ModelProto, layout: Literal["NHWC", "NCHW"] = "NHWC") -> tvm.IRModule:
    return lower(prepare.simplify(bind_shapes(model, {}, {})), TARGET, layout)


@cache
def tiny() -> tvm.IRModule:
    return lowered(softmax_model())


def conv(inputs: int, outputs: int, kernel: int, groups: int = 1, layers: int = 1) -> ModelProto:
    """``layers`` equal convolutions with bias and ReLU on an 8x8 image."""
    generator = np.random.default_rng(0)
    nodes, weights, value = [], {}, "input"
    for layer in range(layers):
        names = [f"weight{layer}", f"bias{layer}"]
        weights[names[0]] = random_weight(generator, outputs, inputs // groups, kernel, kernel)
        weights[names[1]] = random_weight(generator, outputs)
        result = "output" if layer == layers - 1 else f"relu{layer}"
        nodes += [
            helper.make_node(
                "Conv", [value, *names], [f"conv{layer}"], group=groups, pads=[kernel // 2] * 4
            ),
            helper.make_node("Relu", [f"conv{layer}"], [result]),
        ]
        value = result
    return make_model(nodes, {"input": [1, inputs, 8, 8]}, {"output": None}, weights)


def product(left: list[int], right: list[int]) -> ModelProto:
    nodes = [helper.make_node("MatMul", ["left", "right"], ["output"])]
    return make_model(nodes, {"left": left, "right": right}, {"output": None})


def searched(tasks: list[Task]) -> list[Task]:
    return [task for task in tasks if task.info.operator in SEARCHED_OPERATORS]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("model", "operator"),
    [
        (conv(8, 16, 3), "conv2d"),
        # Sums as many products as its bias has values, or as its weight has elements.
        (conv(16, 16, 1), "conv2d"),
        (conv(16, 1, 1), "conv2d"),
        # One input channel, but each output sees it: no group.
        (conv(1, 16, 3), "conv2d"),
        (conv(16, 16, 3, groups=16), "depthwise_conv2d"),
        (conv(8, 16, 5, groups=8), "depthwise_conv2d"),
        (conv(16, 16, 3, groups=4), "group_conv2d"),
    ],
)
def test_family_of_a_convolution(model, operator, layout):
    found = searched(extract_tasks(lowered(model, layout)))
    assert [task.info.operator for task in found] == [operator]
    assert found[0].info.anchor.endswith(f"conv2d_{layout.lower()}")


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


def convolution(operator: str, inputs: list[int], weight: list[int], groups: int = 1) -> ModelProto:
    weights = {"weight": random_weight(np.random.default_rng(0), *weight)}
    node = helper.make_node(operator, ["input", "weight"], ["output"], group=groups)
    return make_model([node], {"input": inputs}, {"output": None}, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "family"),
    [
        (softmax_model(), "conv2d"),
        (conv(16, 16, 3, groups=16), "depthwise_conv2d"),
        (conv(16, 16, 3, groups=4), "group_conv2d"),
        (product([4, 16], [16, 8]), "dense"),
        (product([4, 8, 16], [4, 16, 8]), "batch_matmul"),
        (convolution("Conv", [1, 8, 20], [16, 8, 3]), "conv2d"),
        (convolution("Conv", [1, 8, 20], [16, 2, 3], groups=4), "group_conv2d"),
        (convolution("Conv", [1, 4, 6, 6, 6], [8, 4, 3, 3, 3]), "conv3d"),
        (convolution("ConvTranspose", [1, 8, 6, 6], [8, 2, 3, 3], groups=2), "conv2d_transpose"),
    ],
)
def test_a_logs_workload_has_its_tasks_family(model, family):
    """A log keeps no kernel's name; the module tells the family of all that is searched."""
    tasks = extract_tasks(lowered(model))
    assert family in {task.info.operator for task in searched(tasks)}
    for task in tasks:
        told = analyse(None, task.mod).operator
        if task in searched(tasks):
            assert told == task.info.operator
        else:
            assert told not in SEARCHED_OPERATORS


def test_cost_of_a_convolution():
    (task,) = searched(extract_tasks(lowered(conv(8, 16, 3))))
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
    for module in (tiny(), lowered(conv(8, 8, 3, layers=3))):
        ours = {task.info.workload: task.info.weight for task in extract_tasks(module)}
        theirs = ms.relax_integration.extract_tasks(module, TARGET)
        assert {workload_hash(it.dispatched[0]): it.weight for it in theirs} == ours


def test_equal_kernels_are_one_task():
    module = lowered(conv(8, 8, 3, layers=3))
    (task,) = searched(extract_tasks(module))
    assert task.info.weight == 3
    assert kernels(module)[task.info.name] == task.info.workload


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


_IN_ANOTHER_PROCESS = """
import sys
from fewtune.task.extract import extract_tasks
from fewtune.runtime.tvm import tvm
module = tvm.ir.load_json(open(sys.argv[1]).read())
for task in extract_tasks(module):
    print(task.info.model_dump_json())
"""


@pytest.mark.slow
def test_every_process_finds_the_same(tmp_path):
    module = lowered(tiny_convolutional_model())
    (tmp_path / "lowered.json").write_text(tvm.ir.save_json(module))
    told = subprocess.run(
        [sys.executable, "-c", _IN_ANOTHER_PROCESS, str(tmp_path / "lowered.json")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    here = [task.info.model_dump_json() for task in extract_tasks(module)]
    assert told.stdout.splitlines() == here


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
