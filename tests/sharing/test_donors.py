"""Who is behind, and whom of its kind it asks: by hand."""

from __future__ import annotations

from types import SimpleNamespace

from fewtune.sharing.donors import behind, siblings
from fewtune.trial.trial import Trial
from fewtune.tuning.task_scheduler import TaskProgress
from fewtune.tuning.task_state import TaskState
from tests.made_banks import task_info


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


def test_behind_is_who_reaches_less_than_a_part_or_nothing() -> None:
    states = [
        state("good", 1.0), state("slow", 1.2), state("broken", float("inf")),
        state("other", 9.0, family="dense"),
    ]  # fmt: skip
    rates = {"conv2d": 10.0, "dense": 10.0 / 9.0}
    assert names(behind(states, rates, 0.9)) == ["slow", "broken"]
    assert names(behind(states, rates, 0.8)) == ["broken"]
    # Of a family that nothing works for, all are.
    assert names(behind(states[-1:], {}, 0.9)) == ["other"]


def test_siblings_have_the_same_tail_first_and_then_the_nearest_size() -> None:
    slow = state("slow", 2.0, buffers=5)
    others = [
        state("large", 4.0, flops=40.0, buffers=5),
        state("near", 1.2, flops=12.0, buffers=5),
        state("plain", 1.0, buffers=4),
        state("far off", 9.0, flops=1000.0, buffers=4),
        state("behind", 1.5, buffers=5),
        state("default", None, buffers=5),
        state("other", 0.5, buffers=5, family="dense"),
    ]
    assert siblings(slow, [slow, *others], 10.0) == ["near", "large", "plain"]
    assert siblings(slow, [slow, *others], 1e9) == []
