"""What a session leaves: TVM's database, and schedules that computed wrong outputs."""

from __future__ import annotations

import json
from pathlib import Path

from fewtune.artifacts import LogInfo
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.storage.database import write_database
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.tuning.state import RunState
from fewtune.util.files import write_text

# For a report to TVM: each task's module as TVM JSON, and each schedule's trace, as in TVM's
# database, with its fault.
WRONG_SCHEDULES = "wrong_schedules.json"


def write_result(directory: Path, info: LogInfo, state: RunState) -> None:
    """Write the log of a session.

    Parameters
    ----------
    directory : Path
        Gets ``log.json``, TVM's two database files, and `WRONG_SCHEDULES` if there are any.
    info : LogInfo
    state : RunState
    """
    info.write(directory)
    trials = {name: known.published() for name, known in sorted(state.tasks.items())}
    modules = {name: state.tasks[name].task.mod for name in trials if trials[name]}
    write_database(directory, modules, trials, target_from_json(info.target))
    wrong = {
        name: {
            "module": json.loads(tvm.ir.save_json(known.task.mod)),
            "schedules": [{"trace": each.trace, "fault": each.fault} for each in faulty],
        }
        for name, known in state.tasks.items()
        if (faulty := [each for each in known.known.values() if each.cause == WRONG_OUTPUT])
    }
    if wrong:
        write_text(directory / WRONG_SCHEDULES, json.dumps(wrong, indent=1, sort_keys=True) + "\n")
