"""The check of schedules: right kernels of every kind pass, wrong ones are refused."""

import re
from collections.abc import Callable

import pytest
from tvm import topi

from fewtune.runtime.tvm import build, te, tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule_check.check import Checker, ScheduleCheck, Verdict
from fewtune.workers.worker import argument_shapes, as_in_model
from tests import tuned_tiny
from tests.made.products import convolution, matrix_product


def module_of(*tensors: te.Tensor) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(list(tensors))})


def depthwise() -> tvm.IRModule:
    data = te.placeholder((1, 10, 10, 16), name="data")
    weights = te.placeholder((3, 3, 16), name="weights")
    y, x = te.reduce_axis((0, 3), "y"), te.reduce_axis((0, 3), "x")
    made = te.compute(
        (1, 8, 8, 16),
        lambda n, h, w, c: te.sum(data[n, h + y, w + x, c] * weights[y, x, c], axis=[y, x]),
        "depthwise",
    )
    return module_of(data, weights, made)


def softmax() -> tvm.IRModule:
    data = te.placeholder((4, 100), name="data")
    return module_of(data, topi.nn.softmax(data))


def logarithm() -> tvm.IRModule:
    data = te.placeholder((4, 64), name="data")
    made = te.compute(data.shape, lambda i, j: te.log(te.sqrt(data[i, j])), "logarithm")
    return module_of(data, made)


def gather() -> tvm.IRModule:
    """A gather of rows, whose indices must be within the table."""
    table = te.placeholder((7, 16), name="table")
    indices = te.placeholder((40,), "int64", "indices")
    made = te.compute((40, 16), lambda i, j: table[indices[i], j], "gather")
    return module_of(table, indices, made)


def quantised() -> tvm.IRModule:
    data = te.placeholder((8, 64), name="data")
    made = te.compute(
        data.shape, lambda i, j: te.round(data[i, j] * 127.0).astype("int8"), "quantised"
    )
    return module_of(data, made)


def scaled_by_one_number() -> tvm.IRModule:
    """A scale that is the product of two scalars, as in dynamic quantisation."""
    data = te.placeholder((6, 40), name="data")
    one, other = te.placeholder((), name="one"), te.placeholder((), name="other")
    scale = te.compute((), lambda: one() * other(), "scale")
    made = te.compute((6, 40), lambda i, j: data[i, j] * scale(), "scaled")
    return module_of(data, one, other, made)


KINDS: dict[str, Callable[[], tvm.IRModule]] = {
    "borders": lambda: convolution(9, 4, 8),
    "strided": lambda: convolution(9, 4, 8, stride=2),
    "a filter of one element": lambda: convolution(9, 1, 8, kernel=1),
    "depthwise": depthwise,
    "long sums": lambda: matrix_product(12, 16, 3000),
    "sums of one": lambda: matrix_product(12, 16, 1),
    "half precision": lambda: convolution(9, 4, 8, dtype="float16"),
    "integers": lambda: convolution(9, 4, 8, dtype="int8", sums="int32"),
    "numbers by themselves": scaled_by_one_number,
    "softmax": softmax,
    "roots and logarithms": logarithm,
    "gather": gather,
    "rounding to steps": quantised,
}


def checked(task: tvm.IRModule, scheduled: tvm.IRModule, built: tvm.IRModule) -> Verdict:
    """The verdict on ``built``, which stands for the build of ``scheduled``."""
    target = tuned_tiny.target()
    laid_out = as_in_model(built, target)
    return Checker(target).check(
        build(laid_out, target),
        argument_shapes(laid_out["main"]),
        tvm.ir.save_json(scheduled),
        ScheduleCheck("task", tvm.ir.save_json(task)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_kernel_of_any_kind_passes(kind):
    task = KINDS[kind]()
    schedule = default_schedule(task, tuned_tiny.target())
    module = task if schedule is None else schedule.mod
    verdict = checked(task, module, module)
    assert verdict.fault == ""
    assert verdict.spent_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["borders", "depthwise", "half precision", "integers", "gather"])
def test_a_kernel_that_leaves_a_row_out_is_refused(kind):
    task = KINDS[kind]()
    shorter = altered(task, extent_less=True)
    verdict = checked(task, task, shorter)
    assert "elements differ" in verdict.fault


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["borders", "strided", "depthwise", "long sums", "integers"])
def test_a_kernel_that_leaves_a_term_of_a_sum_out_is_refused(kind):
    task = KINDS[kind]()
    assert checked(task, task, altered(task, extent_less=False)).fault


def altered(task: tvm.IRModule, *, extent_less: bool) -> tvm.IRModule:
    """A kernel whose last block, or sum, ends one step too early."""
    lines = task.script().splitlines()
    kind = "S" if extent_less else "R"
    place = max(p for p, line in enumerate(lines) if "T.grid(" in line and kind in kinds(lines, p))
    numbers = list(re.finditer(r"(?<![a-z\d])\d+(?=[,)])", lines[place]))
    last = max(p for p, each in enumerate(kinds(lines, place)) if each == kind)
    begin, end = numbers[last].span()
    shorter = str(int(lines[place][begin:end]) - 1)
    lines[place] = lines[place][:begin] + shorter + lines[place][end:]
    return tvm.script.from_source("\n".join(lines))


def kinds(lines: list[str], place: int) -> str:
    """Kinds of the axes of the block inside a loop nest: S for spatial, R for reduced."""
    remap = next(line for line in lines[place:] if "axis.remap(" in line)
    return remap.split('"')[1]


def test_a_fault_is_reported_with_its_position():
    task = matrix_product(12, 16, 8)
    fault = checked(task, task, altered(task, extent_less=True)).fault
    assert fault.startswith("12 of 192 elements differ; at [0, 15] it has nan, right is ")
