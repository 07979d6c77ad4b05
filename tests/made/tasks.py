"""Tasks and trials made by hand, for what looks at their figures only."""

import json
from typing import Any

from fewtune.artifacts import TaskInfo
from fewtune.runtime.tvm import tvm
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial


def made_task(name: str, weight: int = 1) -> Task:
    info = TaskInfo(
        name=name,
        workload=f"hash of {name}",
        weight=weight,
        anchor="conv2d_nhwc",
        operator="conv2d",
        shapes=[[1, 4]],
        dtype="float32",
        flops=1.0,
        bytes=1,
        share=0.5,
    )
    return Task(info, tvm.IRModule({}))


def trace(name: str) -> list[Any]:
    """A trace that only finds the block of this name."""
    return [[["GetSBlock", [], [name, "main"], ["b0"]]], []]


def trial(name: str, *run_s: float, cause: str | None = None) -> Trial:
    return Trial(json.dumps([name]), list(run_s) or None, cause)
