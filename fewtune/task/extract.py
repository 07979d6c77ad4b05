"""The tasks of a lowered model, and the files that hold them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import tvm_ffi

from fewtune.artifacts import MAIN, TaskInfo, TaskTable, text_sha256, unchanged_text
from fewtune.errors import InputError
from fewtune.runtime.executable import IS_SCHEDULED
from fewtune.runtime.tvm import read_module, tvm
from fewtune.task.analysis import analyse, calls_by_function
from fewtune.util.files import canonical_json, write_text

MODULES = "modules.json"
# Families that do much arithmetic on each element, so that tiling, which is what is searched,
# decides their time. The others move data once: a default schedule already does that at the
# memory's speed.
SEARCHED_OPERATORS = frozenset({"batch_matmul", "conv2d_transpose", "dense"}) | {
    f"{kind}conv{axes}d" for kind in ("", "depthwise_", "group_") for axes in (1, 2, 3)
}


@dataclass(frozen=True)
class Task:
    """A MetaSchedule task: its description, and its module, or that as TVM's JSON."""

    info: TaskInfo
    module: tvm.IRModule | str

    @cached_property
    def mod(self) -> tvm.IRModule:
        """The module, with one PrimFunc ``main``; of many tasks few are needed in a process."""
        return read_module(self.module) if isinstance(self.module, str) else self.module


def is_worth_searching(task: TaskInfo, min_share: float) -> bool:
    """Whether a task is of a family that is searched, and enough of the model's estimated time."""
    return task.operator in SEARCHED_OPERATORS and task.share >= min_share


def task_module(function: tvm.tirx.PrimFunc) -> tvm.IRModule:
    """The workload module of a kernel, as ``meta_schedule.extract_tasks`` normalises it."""
    normalize = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    return normalize(function.with_attr("global_symbol", "main"))


def workload_hash(module: tvm.IRModule) -> str:
    """Structural hash of a workload in hex; equal in every process."""
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"


def kernels(lowered: tvm.IRModule) -> dict[str, str]:
    """The workload hash of every kernel of a lowered model, by kernel name."""
    return {
        symbol.name_hint: workload_hash(task_module(function))
        for symbol, function in lowered.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


def extract_tasks(lowered: tvm.IRModule) -> list[Task]:
    """The distinct kernels of a model, heaviest first; scheduled ones are left out.

    Parameters
    ----------
    lowered : IRModule
        Output of `fewtune.model.import_model.lower`.

    Returns
    -------
    tasks : list of Task
        Named after the first kernel of equal structure; ordered by estimated share, then name.
    """
    calls = calls_by_function(lowered)
    called: dict[str, Counter[str]] = defaultdict(Counter)
    first: dict[str, tuple[str, tvm.IRModule]] = {}
    for symbol, function in lowered.functions_items():
        if not isinstance(function, tvm.tirx.PrimFunc) or (function.attrs or {}).get(IS_SCHEDULED):
            continue
        module = task_module(function)
        digest = workload_hash(module)
        called[digest].update({shape: counts[symbol.name_hint] for shape, counts in calls.items()})
        first.setdefault(digest, (symbol.name_hint, module))
    costs = {digest: analyse(name, module) for digest, (name, module) in first.items()}
    wholes = {
        shape: sum(cost.weight_of_one_call * called[each][shape] for each, cost in costs.items())
        for shape in calls
    }
    tasks = []
    for digest, (name, module) in first.items():
        cost, counts = costs[digest], called[digest]
        # A kernel of a small shape is as dear to that shape as another to the largest.
        by_shape = {f: cost.weight_of_one_call * counts[f] / wholes[f] for f in calls}
        info = TaskInfo(
            name=name,
            workload=digest,
            weight=counts[MAIN],
            share=by_shape[MAIN] if counts[MAIN] else max(by_shape.values()),
            calls={f: count for f, count in counts.items() if count} if len(calls) > 1 else {},
            **vars(cost),
        )
        tasks.append(Task(info, module))
    tasks = with_shares_of_twins(tasks)
    return sorted(tasks, key=lambda task: (-task.info.share, task.info.name))


def with_shares_of_twins(tasks: list[Task]) -> list[Task]:
    """Twins count as much as the dearest task that takes their schedules.

    Else a task just above the least share would be searched for itself, and its weights, in a
    layout of its own, be stored twice.
    """
    infos = {task.info.name: task.info for task in tasks}
    shares = {name: info.share for name, info in infos.items()}
    for name, twin in twins_of([*infos.values()]).items():
        shares[twin] = max(shares[twin], infos[name].share)
    return [
        replace(task, info=task.info.model_copy(update={"share": shares[task.info.name]}))
        for task in tasks
    ]


def write_tasks(tasks: list[Task], model: str, target: str, directory: Path) -> None:
    """Write a model's tasks: their table, and their modules beside it."""
    modules = {task.info.name: tvm.ir.save_json(task.mod) for task in tasks}
    text, infos = canonical_json(modules), [task.info for task in tasks]
    table = TaskTable(model=model, target=target, tasks=infos, modules_sha256=text_sha256(text))
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / MODULES, text)
    table.write(directory)


def read_tasks(directory: Path) -> list[Task]:
    """Read the table and the modules that the extract_tasks stage wrote.

    Raises
    ------
    InputError
        If a file is missing or damaged.
    """
    table = TaskTable.read(directory)
    modules = json.loads(unchanged_text(directory / MODULES, table.modules_sha256))
    if missing := [info.name for info in table.tasks if info.name not in modules]:
        raise InputError(f"{directory / MODULES} lacks {missing[0]!r}: run extract_tasks again")
    return [Task(info, modules[info.name]) for info in table.tasks]


def twins_of(tasks: Sequence[TaskInfo]) -> dict[str, str]:
    """The twin of each task of another shape, if it has one.

    A twin computes the same, of buffers of as many axes. Of several, that with the most extents in
    common is taken: weights do not change with the shape. Of those it is the one of the same name,
    which reads the same weights, or the first.
    """
    found = {}
    for task in (each for each in tasks if each.is_of_other_shape):
        if own := [t for t in tasks if not t.is_of_other_shape and _form(t) == _form(task)]:
            name = task.name.rpartition("_s")[0]
            found[task.name] = max(own, key=lambda t: (_in_common(t, task), t.name == name)).name
    return found


def searched_twins(tasks: Sequence[TaskInfo], min_share: float) -> dict[str, str]:
    """The tasks of other shapes that take their twin's schedule: it is worth searching."""
    worth = {task.name for task in tasks if is_worth_searching(task, min_share)}
    return {name: twin for name, twin in twins_of(tasks).items() if twin in worth}


def _form(task: TaskInfo) -> tuple[str, str, tuple[int, ...]]:
    return task.anchor, task.dtype, tuple(map(len, task.shapes))


def _in_common(one: TaskInfo, other: TaskInfo) -> int:
    """Extents that are equal, weighted so that a buffer that is all equal counts most."""
    pairs = list(zip(one.shapes, other.shapes, strict=True))
    extents = sum(a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))
    return extents + 100 * sum(mine == theirs for mine, theirs in pairs)
