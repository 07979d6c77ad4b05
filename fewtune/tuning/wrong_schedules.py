"""Schedules whose kernels computed wrong outputs, kept for a report to TVM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fewtune.runtime.tvm import tvm
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.tuning.task_state import TaskState
from fewtune.util.files import write_text

FILE = "wrong_schedules.json"


def write_wrong_schedules(directory: Path, states: Iterable[TaskState]) -> None:
    """Write what reproduces the wrong schedules, if there are any.

    Parameters
    ----------
    directory : Path
        Gets `FILE`: each task's module as TVM JSON, and each schedule's trace, as in TVM's
        database, with its fault.
    states : iterable of TaskState
    """
    found = {}
    for state in states:
        known = [*state.earlier, *state.trials]
        known += [state.default] if state.default is not None else []
        wrong = {each.key: each for each in known if each.cause == WRONG_OUTPUT}
        if wrong:
            found[state.task.info.name] = {
                "module": json.loads(tvm.ir.save_json(state.task.mod)),
                "schedules": [
                    {"trace": each.trace, "fault": each.fault} for each in wrong.values()
                ],
            }
    if found:
        write_text(directory / FILE, json.dumps(found, indent=1, sort_keys=True) + "\n")
