"""Weights of several shapes in one layout, so that a library holds them once.

A schedule lays out the weights of its kernel. If kernels of two shapes lay one out differently,
the library holds it twice. Up to a bound the faster schedules keep their own layouts; beyond it,
other shapes take schedules with the largest shape's layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tvm_ffi

from fewtune.artifacts import MAIN
from fewtune.compile.schedules import KernelSchedules
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import donation_of, move
from fewtune.storage.database import best_trials
from fewtune.task.analysis import kernel_calls, model_functions
from fewtune.task.extract import Task
from fewtune.task.weight_layout import free_places, layout_blocks
from fewtune.trial.trial import plain
from fewtune.tvm_compat.values import is_constant

# A library of several shapes has at most so many bytes of weights for each of the largest alone.
MOST_OF_LARGEST = 1.15
# Records of a task that are tried; the next are too slow to be worth it.
_MOST_RECORDS = 16


class _Reading(NamedTuple):
    """A kernel that reads a weight, and the number of the argument."""

    function: str
    kernel: str
    place: int


def share_layouts(
    lowered: tvm.IRModule,
    schedules: KernelSchedules,
    tasks: list[Task],
    database: ms.database.Database,
    target: tvm.target.Target,
) -> dict[str, str]:
    """Give kernels of other shapes schedules with the largest shape's layouts, if that is needed.

    Parameters
    ----------
    lowered : IRModule
        Of several shapes.
    schedules : KernelSchedules
        Its kernels' schedules; some are replaced.
    tasks : list of Task
    database : Database
        The tuning log.
    target : Target

    Returns
    -------
    kept : dict of str
        By kernel, why it keeps a layout of its own although there is no room for that.
    """
    weights = _weights(lowered)
    by_workload = {task.info.workload: task for task in tasks}
    of_largest = (w.size for w in weights if any(each.function == MAIN for each in w.readings))
    bound = MOST_OF_LARGEST * sum(of_largest)
    kernels = {each.kernel for weight in weights for each in weight.readings}
    layouts = {kernel: _layouts(schedules.scheduled(kernel)) for kernel in kernels}
    kept: dict[str, str] = {}
    for reading, largest in _of_other_shapes(weights):
        wanted = layouts[largest.kernel].get(largest.place)
        if layouts[reading.kernel].get(reading.place) == wanted or reading.kernel in kept:
            continue
        if _total(weights, layouts) <= bound:
            return {}
        task, donor = (
            by_workload.get(schedules.workloads[each.kernel]) for each in (reading, largest)
        )
        for made in _alternatives(task, donor, database, target) if task and donor else ():
            if (found := _layouts(made)).get(reading.place) == wanted:
                schedules.take(reading.kernel, made)
                layouts[reading.kernel] = found
                break
        else:
            kept[reading.kernel] = "no schedule of it reads the largest shape's layout"
    return kept if _total(weights, layouts) > bound else {}


class _Weight(NamedTuple):
    """A weight whose layout is free: its bytes, and who reads it."""

    size: int
    readings: list[_Reading]


def _weights(lowered: tvm.IRModule) -> list[_Weight]:
    """The weights whose layout is free, large ones first."""
    found: dict[str, _Weight] = {}
    for function in model_functions(lowered):
        for kernel, arguments in kernel_calls(lowered, function):
            for place in free_places(lowered[kernel]):
                if is_constant(arguments[place]):
                    value = arguments[place].value.numpy()
                    digest = hashlib.sha256(value.tobytes()).hexdigest() + str(value.shape)
                    weight = found.setdefault(digest, _Weight(value.nbytes, []))
                    weight.readings.append(_Reading(function, kernel, place))
    return sorted(found.values(), key=lambda weight: -weight.size)


def _of_other_shapes(weights: list[_Weight]) -> Iterator[tuple[_Reading, _Reading]]:
    """Kernels of other shapes, each with the largest shape's reader of a weight."""
    for weight in weights:
        of_largest = [each for each in weight.readings if each.function == MAIN]
        own = {each.kernel for each in of_largest}
        others = [each for each in weight.readings if each.kernel not in own]
        yield from ((each, of_largest[0]) for each in others if of_largest)


def _total(weights: list[_Weight], layouts: Mapping[str, dict[int, int]]) -> int:
    """Bytes of the weights in all layouts."""
    return sum(
        weight.size * len({layouts[each.kernel].get(each.place) for each in weight.readings})
        for weight in weights
    )


def _layouts(kernel: tvm.tirx.PrimFunc) -> dict[int, int]:
    """A hash of the layout of each weight, by number of the argument; of none that is as given."""
    blocks = layout_blocks(tvm.IRModule({"main": kernel}))
    return {
        place: tvm_ffi.structural_hash(block.body, map_free_vars=True)
        for place, block in blocks.items()
    }


def _alternatives(
    task: Task, donor: Task, database: ms.database.Database, target: tvm.target.Target
) -> Iterator[tvm.tirx.PrimFunc]:
    """Other schedules of a task: those in the log, and the largest shape's moved to it."""
    for record in best_trials(database, task.mod, _MOST_RECORDS):
        schedule = tvm.s_tir.Schedule(task.mod)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        yield schedule.mod["main"]
    donations = [
        donation_of(donor.mod, plain(record.trace.as_json()))
        for record in best_trials(database, donor.mod, 1)
    ]
    for made in move(donations, SearchSpace(task.mod, target)) if donations else ():
        if made.schedule is not None:
            yield made.schedule.mod["main"]
