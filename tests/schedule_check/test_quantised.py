"""The check of kernels in eight bits: outputs depend on sums, and faults are refused."""

from typing import Any

import numpy as np
import pytest

from fewtune.model.passes.integer_products import multiplied
from fewtune.runtime import dot_products
from fewtune.runtime.tvm import has_feature, te, tvm
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule_check.check import TaskReference
from tests import tuned_tiny
from tests.schedule_check.test_check import checked

ROWS, DEPTH, COLUMNS = 12, 64, 32
FORMS = ("plain", "own")


def form(name: str) -> str:
    """A form of the dot product, by default that of this processor."""
    target = tuned_tiny.target()
    own = dot_products.form_of(lambda feature: has_feature(target, feature))
    return dot_products.PLAIN if name == "plain" else own


def product(name: str = "own", fault: str = "") -> tvm.IRModule:
    """A product of bytes with an addend, a scale and two limits, perhaps with a fault."""
    data = te.placeholder((ROWS, DEPTH), "uint8", "data")
    weights = te.placeholder((DEPTH // 4, COLUMNS), "int32", "weights")
    addend = te.placeholder((1, COLUMNS), "int32", "addend")
    scale = te.placeholder((1, COLUMNS), name="scale")
    zero, lower, upper = (te.placeholder((1, 1), name=each) for each in ("zero", "lower", "upper"))

    def dot(word: Any, other: Any) -> Any:
        other = other & tvm.tirx.const(0xFFFFFF, "int32") if fault == "byte" else other
        return dot_products.dot4(form(name), word, other)

    sums = multiplied(dot, data, weights)
    shape = (ROWS, COLUMNS)

    def at(compute: Any) -> te.Tensor:
        return te.compute(shape, compute)

    added = at(lambda i, j: sums[i, j] + addend[0, 0 if fault == "addend" else j])
    wide = at(lambda i, j: added[i, j].astype("float32"))
    scaled = at(lambda i, j: wide[i, j] * scale[0, 0 if fault == "scale" else j])
    near = at(lambda i, j: te.nearbyint(scaled[i, j]))
    moved = at(lambda i, j: near[i, j] + zero[0, 0])
    least = at(lambda i, j: tvm.tirx.Max(moved[i, j], lower[0, 0]))
    most = at(lambda i, j: tvm.tirx.Min(least[i, j], upper[0, 0]))
    made = at(lambda i, j: most[i, j].astype("uint8"))
    arguments = [data, weights, addend, scale, zero, lower, upper, made]
    return tvm.IRModule({"main": te.create_prim_func(arguments)})


def fault_of(task: tvm.IRModule, candidate: tvm.IRModule) -> str:
    """The fault that the check finds in a candidate of a task."""
    return checked(task, candidate, candidate).fault


def expected(task: tvm.IRModule, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The reference's outputs of a task."""
    kept, found = TaskReference._expect, list[np.ndarray]()

    def expect(self: TaskReference, outputs: dict[int, np.ndarray], *moved: Any) -> None:
        found.extend(each.copy() for each in outputs.values())
        kept(self, outputs, *moved)

    with monkeypatch.context() as patch:
        patch.setattr(TaskReference, "_expect", expect)
        assert fault_of(task, task) == ""
    return found[-1]


@pytest.mark.parametrize("name", FORMS)
def test_a_right_kernel_passes_with_any_dot_product(name):
    task = product(name)
    schedule = default_schedule(task, tuned_tiny.target())
    assert schedule is not None
    assert fault_of(task, schedule.mod) == ""
    assert fault_of(task, task) == ""


def test_outputs_are_not_all_at_a_limit(monkeypatch):
    made = expected(product(), monkeypatch)
    assert len(np.unique(made)) > 60
    assert np.mean((made == 0) | (made == 255)) < 0.2


@pytest.mark.parametrize("fault", ["byte", "addend", "scale"])
def test_a_fault_behind_rounding_and_limits_is_refused(fault):
    assert "elements differ" in fault_of(product(), product(fault=fault))


def test_a_quantised_input_is_spread_over_its_bytes(monkeypatch):
    data = te.placeholder((40, 40), name="data")
    scale, zero = te.placeholder((1, 1), name="scale"), te.placeholder((1, 1), name="zero")
    parts = te.compute((40, 40), lambda i, j: te.nearbyint(data[i, j] / scale[0, 0]))
    moved = te.compute((40, 40), lambda i, j: parts[i, j] + zero[0, 0])
    made = te.compute((40, 40), lambda i, j: moved[i, j].astype("uint8"))
    task = tvm.IRModule({"main": te.create_prim_func([data, scale, zero, made])})
    assert len(np.unique(expected(task, monkeypatch))) > 60
