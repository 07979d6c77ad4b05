"""A task whose every schedule was measured once: search without hardware.

``python -m tests.recorded`` measures them anew (two minutes) and writes the file that the tests
replay. The task is so small that its figures are mostly loop overhead, which is a landscape to
search like any other.
"""

import itertools
import json
import math
from functools import cache
from pathlib import Path

from tvm import te, topi

from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.design_space import CATEGORICAL, TILE, Choice, Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.extract import task_module

FILE = Path(__file__).parent / "data" / "matmul_2x8x4.json"
# Fixed: the design spaces must be the recorded ones on whatever machine the tests run.
TARGET = '{"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2, "keys": ["cpu"]}'


def module() -> tvm.IRModule:
    """A matrix product of 2x4 and 4x8."""
    left = te.placeholder((2, 4), name="left")
    right = te.placeholder((4, 8), name="right")
    return task_module(te.create_prim_func([left, right, topi.matmul(left, right)]))


@cache
def space() -> SearchSpace:
    """Its search space."""
    return SearchSpace(module(), target_from_json(TARGET))


def _decisions(choice: Choice) -> list:
    if choice.kind == TILE:
        return list(choice.ways)
    if choice.kind == CATEGORICAL:
        return list(range(len(choice.values)))
    raise ValueError(f"the recorded task has a {choice.kind}")


def points() -> list[Point]:
    """Every point of the space, in one order."""
    return [
        Point(program.number, decisions)
        for program in space().programs
        for decisions in itertools.product(*map(_decisions, program.choices))
    ]


@cache
def times_s() -> dict[Point, float]:
    """Seconds of every point; infinite where it failed."""
    recorded = json.loads(FILE.read_text())
    every = points()
    assert len(every) == len(recorded), "the design space is not the recorded one"
    return {
        point: time_ns * 1e-9 if time_ns is not None else math.inf
        for point, time_ns in zip(every, recorded, strict=True)
    }


def _record() -> None:
    from fewtune.measure.measurer import Measurer, module_specs
    from fewtune.workers.pool import WorkerPool

    every, figures = points(), []
    specs = module_specs(module())
    with WorkerPool(TARGET, 1, 2) as pool:
        for start in range(0, len(every), 64):
            made = [space().make(point).schedule for point in every[start : start + 64]]
            assert None not in made
            outcomes = Measurer(pool).measure(
                [schedule.mod for schedule in made], [specs] * len(made), [1e-9] * len(made)
            )
            figures += [round(o.median_s * 1e9, 1) if o.run_s else None for o in outcomes]
            print(f"{len(figures)}/{len(every)}", flush=True)
    FILE.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    _record()
