"""Schedules whose kernels computed something else, kept for a report to TVM."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fewtune.runtime.tvm import tvm
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.tuning.task_state import TaskState
from fewtune.util.files import write_text

FILE = "wrong_schedules.json"


def write_wrong_schedules(directory: Path, states: Iterable[TaskState]) -> int:
    """Write what it takes to make these schedules again, where there are any.

    Parameters
    ----------
    directory : Path
        Gets `FILE`: of each task its module as TVM JSON, and of each schedule its trace, as TVM's
        database holds it, and what was wrong.
    states : iterable of TaskState

    Returns
    -------
    count : int
        Of schedules.
    """
    found, count = {}, 0
    for state in states:
        known = [*state.earlier, *state.trials]
        known += [each for each in (state.default, state.taken) if each is not None]
        wrong = {each.key: each for each in known if each.cause == WRONG_OUTPUT}
        if wrong:
            found[state.task.info.name] = {
                "module": json.loads(tvm.ir.save_json(state.task.mod)),
                "schedules": [
                    {"trace": each.trace, "fault": each.fault} for each in wrong.values()
                ],
            }
            count += len(wrong)
    if count:
        write_text(directory / FILE, json.dumps(found, indent=1, sort_keys=True) + "\n")
    return count
