"""The end of a text detector, for which a tuned kernel was once wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.model.lower import TRANSPOSED, lower
from fewtune.onnx_graph.simplify import simplify
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.tvm import build, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule_check.check import Checker, ScheduleCheck
from fewtune.task.extract import Task, extract_tasks
from fewtune.workers.kernel_build import argument_shapes, as_in_model
from tests import tuned_tiny

_POINTS = 8


def head() -> ModelProto:
    """Transposed 2x2 convolutions of stride 2, the last one with a single channel."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w1", (16, 16, 2, 2)), ("w2", (16, 1, 2, 2)))
    ]
    sizes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w1"], ["t"], **sizes),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("ConvTranspose", ["u", "w2"], ["v"], **sizes),
        helper.make_node("Sigmoid", ["v"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 20, 20])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 80, 80])
    graph = helper.make_graph(nodes, "head", [given], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def last_task() -> Task:
    steps = OptionalSteps({TRANSPOSED: "this is of TVM's own kernel"})
    lowered = lower(simplify(head()), tuned_tiny.target(), "NHWC", steps=steps)
    tasks = extract_tasks(lowered, tuned_tiny.target())
    return next(task for task in tasks if task.info.shapes[-1] == [1, 1, 80, 80])


def result_of(module: tvm.IRModule) -> np.ndarray:
    """Output of a kernel that rewrites the layout of its weights itself."""
    random = np.random.default_rng(1)
    given = [
        tvm.runtime.tensor(random.standard_normal(shape).astype("float32"))
        for shape in argument_shapes(module["main"])
    ]
    build(module, tuned_tiny.target())["main"](*given)
    return given[-1].numpy()


def verdicts(module: tvm.IRModule) -> list[tuple[bool, tvm.IRModule]]:
    """Schedules drawn from a task's space, and whether each passes the check."""
    target, random = tuned_tiny.target(), np.random.default_rng(0)
    space, checker = SearchSpace(module, target), Checker(target)
    wanted = ScheduleCheck("head", tvm.ir.save_json(module))
    found = []
    for _ in range(_POINTS):
        made = space.make(space.random_point(random), seed=1)
        if made.schedule is None:
            continue
        scheduled = made.schedule.mod
        kernel = as_in_model(scheduled, target)
        shapes, code = argument_shapes(kernel["main"]), build(kernel, target)
        verdict = checker.check(code, shapes, tvm.ir.save_json(scheduled), wanted)
        found.append((verdict.is_right, scheduled))
    return found


@pytest.mark.slow
def test_schedules_that_pass_are_right() -> None:
    task = last_task()
    found = verdicts(task.mod)
    assert found
    right = result_of(task.mod)
    for passes, scheduled in found:
        assert passes
        np.testing.assert_allclose(result_of(scheduled), right, rtol=1e-5, atol=1e-4)
