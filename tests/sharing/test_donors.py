"""Which tasks reach less than similar ones, by hand."""

from types import SimpleNamespace

from fewtune.sharing.session import behind
from fewtune.trial.trial import Trial
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import TaskState
from tests.made.banks import task_info


def state(
    name: str,
    time_s: float | None,
    *,
    flops: float = 10.0,
    buffers: int = 3,
    family: str = "conv2d",
) -> TaskState:
    """A task with one trial; with none, only its default schedule works."""
    info = task_info(name, workload=name, operator=family, flops=flops)
    info = info.model_copy(update={"shapes": [[1]] * buffers})
    found = TaskState(SimpleNamespace(info=info, mod=None), TaskProgress.of(info))
    if time_s is None:
        found.progress.default_s = 1.0
    else:
        found.add(Trial(name, [time_s], None))
        found.progress.best_s = [time_s]
    return found


def names(states: list[TaskState]) -> list[str]:
    return [each.task.info.name for each in states]


def test_behind_is_who_reaches_less_than_a_part_or_nothing():
    states = [
        state("good", 1.0), state("slow", 1.2), state("broken", float("inf")),
        state("other", 9.0, family="dense"),
    ]  # fmt: skip
    rates = {"conv2d": 10.0, "dense": 10.0 / 9.0}
    assert names(behind(states, rates, 0.9)) == ["slow", "broken"]
    assert names(behind(states, rates, 0.8)) == ["broken"]
    # Of a family that nothing works for, all are.
    assert names(behind(states[-1:], {}, 0.9)) == ["other"]
