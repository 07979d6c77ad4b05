"""Modules of one model's shapes in one: kernels and weights are there once."""

import pytest

from fewtune.model.one_module import one_module
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.target import host_target
from fewtune.runtime.tvm import relax
from fewtune.task.analysis import calls_by_function, model_functions
from fewtune.task.extract import extract_tasks
from fewtune.tvm_compat.values import is_constant
from tests import tiny_models
from tests.made.compiled import lowered


@pytest.fixture(scope="module")
def modules():
    model = tiny_models.dynamic_model()
    bound = [bind_shapes(model, {"input": [batch, 3, 16, 16]}, {}) for batch in (2, 1)]
    return [lowered(each, "NHWC", host_target(1)) for each in bound]


def weights(module):
    """Every constant object of a module, once."""
    found = []

    def take(value):
        if is_constant(value) and not any(value.same_as(each) for each in found):
            found.append(value)

    for name in model_functions(module):
        relax.analysis.post_order_visit(module[name], take)
    return [(each.value.numpy().shape, each.value.numpy().tobytes()) for each in found]


def test_weights_are_there_once_and_kernels_keep_their_calls(modules):
    joined, names = one_module(modules)
    found = weights(joined)
    assert len(found) == len(set(found))
    assert set(found) == {each for module in modules for each in weights(module)}
    calls = calls_by_function(joined)
    for function, module, renamed in zip(["main", "main_1"], modules, names, strict=True):
        own = calls_by_function(module)["main"]
        assert calls[function] == {renamed[kernel]: count for kernel, count in own.items()}


def test_tasks_know_their_shapes(modules):
    joined, _ = one_module(modules)
    own = {task.info.workload: task.info for task in extract_tasks(modules[0])}
    for task in extract_tasks(joined):
        if task.info.is_of_other_shape:
            assert task.info.workload not in own
            assert (task.info.weight, task.info.calls.keys()) == (0, {"main_1"})
        else:
            assert task.info.weight == own[task.info.workload].weight
            # A twin counts as much as the dearest task that takes its schedule.
            assert task.info.share >= own[task.info.workload].share
