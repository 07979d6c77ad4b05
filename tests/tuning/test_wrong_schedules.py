"""What computed something else is kept, with all that makes it again."""

import json

import tvm_ffi

from fewtune.runtime.tvm import module_of
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.trial.trial import Trial
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import TaskState
from fewtune.tuning.wrong_schedules import FILE, write_wrong_schedules
from tests.made.tasks import made_task


def test_wrong_schedules_are_written_with_their_task(tmp_path):
    task = made_task("conv")
    state = TaskState(task, TaskProgress.of(task.info))
    state.add(Trial('["right"]', [1.0], None))
    write_wrong_schedules(tmp_path, [state])
    assert not (tmp_path / FILE).exists()
    state.add(Trial('["wrong"]', None, WRONG_OUTPUT, fault="3 of 4 elements differ"))
    write_wrong_schedules(tmp_path, [state])
    kept = json.loads((tmp_path / FILE).read_text())["conv"]
    assert kept["schedules"] == [{"trace": ["wrong"], "fault": "3 of 4 elements differ"}]
    assert tvm_ffi.structural_equal(module_of(json.dumps(kept["module"])), task.mod)
