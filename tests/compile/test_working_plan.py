"""Plans that raise or compute wrong results: what is left out, and what is named."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from fewtune.compile.build import REWRITES, BuiltModel, Plan, build
from fewtune.compile.schedules import KernelSchedules, Level
from fewtune.compile.working_plan import PlanSearch, WorkingPlan, find_by_halves
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.kernel_store import renamed
from fewtune.runtime.linking import export_library
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.storage.database import read_database, write_database
from fewtune.task.weight_layout import FREE
from tests import tuned_tiny

NAMES = [f"kernel_{number}" for number in range(40)]


def search(
    *,
    raises: Callable[[Plan], bool] = lambda _: False,
    wrong: Callable[[Plan], bool] = lambda _: False,
    broken: tuple[str, ...] = (),
    plain: dict[str, Level] | None = None,
) -> tuple[WorkingPlan, PlanSearch, int]:
    """The working plan of a made-up compiler, and the number of its builds."""
    built: list[Plan] = []

    def build_it(plan: Plan) -> BuiltModel:
        built.append(plan)
        if raises(plan) or any(plan.levels[name] == Level.LOG for name in broken):
            raise IndexError("it does not build")
        return BuiltModel(plan, Counter())  # type: ignore[arg-type]

    plans = PlanSearch(
        build=build_it,
        error_of=lambda made: 2.0 if wrong(made.executable) else 0.5,
        plain=lambda: plain or dict.fromkeys(NAMES, Level.PLAIN_DEFAULT),
    )
    found = plans.find(Plan(dict.fromkeys(NAMES, Level.LOG), frozenset(REWRITES)))
    return found, plans, len(built)


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize(
    ("how", "reason"), [("raises", "IndexError: it does not build"), ("wrong", "wrong output")]
)
def test_a_rewrite_that_fails_is_left_out_and_named(rewrite, how, reason):
    found, plans, _ = search(**{how: lambda plan: rewrite in plan.rewrites})
    assert found.plan.rewrites == frozenset(REWRITES) - {rewrite}
    assert [(each.what, each.reason) for each in plans.left_out] == [(rewrite, reason)]
    assert plans.replaced == []


@pytest.mark.parametrize("wrong", [(3,), (0, 39), (7, 8, 25)])
def test_wrong_kernels_get_default_schedules_and_are_named(wrong):
    names = [NAMES[place] for place in wrong]
    found, plans, builds = search(
        wrong=lambda plan: any(plan.levels[name] == Level.LOG for name in names)
    )
    assert sorted(each.kernel for each in plans.replaced) == sorted(names)
    assert {each.reason for each in plans.replaced} == {"wrong output"}
    assert all((found.plan.levels[n] != Level.LOG) == (n in names) for n in NAMES)
    assert found.plan.rewrites == frozenset(REWRITES)
    assert found.error == 0.5
    assert builds <= 10 + 2 * 6 * len(names)


def test_a_kernel_whose_default_schedule_is_wrong_too_stays_unscheduled():
    name = NAMES[11]
    found, plans, _ = search(wrong=lambda plan: plan.levels[name] != Level.UNSCHEDULED)
    assert found.plan.levels[name] == Level.UNSCHEDULED
    assert sum(level != Level.LOG for level in found.plan.levels.values()) == 1


def test_a_kernel_that_does_not_compile_gets_its_default_schedule():
    found, plans, _ = search(broken=(NAMES[4],))
    (lost,) = plans.replaced
    assert (lost.kernel, lost.reason) == (NAMES[4], "IndexError: it does not build")
    assert found.plan.levels[NAMES[4]] == Level.PLAIN_DEFAULT
    assert found.plan.rewrites == frozenset(REWRITES)


def test_what_is_wrong_only_together_is_named_together():
    pair = {NAMES[1], NAMES[6]}
    assert find_by_halves(NAMES[:8], lambda some: pair <= set(some)) == NAMES[:8]


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


@pytest.mark.slow
def test_a_schedule_that_tvm_gets_wrong_is_found_in_a_real_library(tmp_path):
    lowered, target = _model(), tuned_tiny.target()
    write_database(tmp_path, {}, {}, target)
    schedules = KernelSchedules(lowered, [], read_database(tmp_path), target)
    data = np.random.default_rng(0).uniform(-1, 1, (32, 16)).astype("float32")

    def outputs(built: BuiltModel) -> np.ndarray:
        path = tmp_path / "model.so"
        path.unlink(missing_ok=True)
        export_library(built.executable, path, objects=renamed(built.objects, tmp_path))
        return CompiledModel(path, target).outputs([data])[0]

    nothing = dict.fromkeys(schedules.levels, Level.UNSCHEDULED)
    expected = outputs(build(lowered, schedules, Plan(nothing, frozenset()), target))
    plans = PlanSearch(
        build=lambda plan: build(lowered, schedules, plan, target),
        error_of=lambda built: float(np.max(np.abs(outputs(built) - expected))) / 1e-4,
        plain=schedules.plain,
    )
    found = plans.find(Plan(schedules.levels, frozenset(REWRITES)))
    assert found.error <= 1
    assert [(each.kernel, each.schedule) for each in plans.replaced] == [
        ("slice", "default, weights as given")
    ]
    assert found.plan.levels["whole"] == Level.DEFAULT
    assert plans.left_out == []
