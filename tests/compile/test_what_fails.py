"""Rewrites and schedules that raise or compute wrong results are left out, and named."""

import numpy as np
import pytest

from fewtune.compile import compile as building
from fewtune.compile.compile import PREFETCH, REWRITES, build, compile_model
from fewtune.compile.schedules import KernelSchedules, Level, by_default
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from fewtune.runtime.executable import CompiledModel, export_library
from fewtune.runtime.kernel_store import renamed
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.storage.database import read_database, write_database
from fewtune.task.weight_layout import FREE
from tests import tuned_tiny

pytestmark = pytest.mark.slow


def _product(rows: int, first: int) -> tvm.tirx.PrimFunc:
    """A product with 16 of a matrix's rows, marked as TVM's own pass marks it."""
    data = te.placeholder((32, 16), "float32", "data")
    weights = te.placeholder((rows, 16), "float32", "weights")
    row = te.reduce_axis((0, 16), "row")
    made = te.compute((32, 16), lambda i, j: te.sum(data[i, row] * weights[row + first, j], row))
    function = te.create_prim_func([data, weights, made])
    return function.with_attr(FREE, [1]).with_attr("tirx.noalias", True)


def _model() -> tvm.IRModule:
    """Two products; TVM's rewriting of layouts goes wrong on ``slice``."""
    builder = relax.BlockBuilder()
    random = np.random.default_rng(1)
    given = relax.Var("data", relax.TensorType((32, 16), "float32"))
    with builder.function("main", [given]):
        value = given
        for name, rows, first in (("whole", 16, 0), ("slice", 32, 8)):
            kernel = builder.add_func(_product(rows, first), name)
            constant = relax.const(random.uniform(-1, 1, (rows, 16)).astype("float32"))
            result = relax.TensorType((32, 16), "float32")
            value = builder.emit(relax.call_tir(kernel, [value, constant], result))
        builder.emit_func_output(value)
    return builder.get()


def _schedules(lowered: tvm.IRModule, log) -> KernelSchedules:
    write_database(log, {}, {}, tuned_tiny.target())
    return KernelSchedules(lowered, [], read_database(log), tuned_tiny.target())


def test_a_schedule_that_tvm_gets_wrong_is_found_in_a_real_library(tmp_path):
    lowered, target = _model(), tuned_tiny.target()
    schedules = _schedules(lowered, tmp_path)
    data = np.random.default_rng(0).uniform(-1, 1, (32, 16)).astype("float32")
    plain = list(map(by_default, schedules.levels))
    expected = None

    def attempt(steps: OptionalSteps) -> dict[str, Level]:
        nonlocal expected
        built, path = build(lowered, schedules, steps, target), tmp_path / "model.so"
        path.unlink(missing_ok=True)
        export_library(built.executable, path, objects=renamed(built.objects, tmp_path))
        (found,) = CompiledModel(path, target).outputs([data])
        expected = found if expected is None else expected
        assert np.max(np.abs(found - expected)) <= 1e-4
        return dict(built.levels)

    names = [*plain, *schedules.levels, *REWRITES]
    attempt(OptionalSteps(dict.fromkeys(names, "")))
    levels, failed = with_most_steps(attempt, names, quick=plain)
    assert failed.keys() == {"slice"}
    assert levels == {"whole": Level.DEFAULT, "slice": Level.PLAIN_DEFAULT}


def test_a_kernel_without_a_right_default_schedule_stays_unscheduled(tmp_path):
    schedules = _schedules(_model(), tmp_path)
    found = schedules.levels_with(OptionalSteps({"slice": "", by_default("slice"): ""}))
    assert found == {"whole": Level.DEFAULT, "slice": Level.UNSCHEDULED}


def test_a_rewrite_that_raises_is_left_out_and_named(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise IndexError("it does not fit")

    monkeypatch.setattr(building, "prefetched", broken)
    report = compile_model(tuned_tiny.compile_job(tuned_tiny.tuned(), tmp_path))
    assert [(each.what, each.reason) for each in report.left_out] == [(PREFETCH, "it does not fit")]
    assert report.replaced == []
    assert report.scheduled_from_log == 1
