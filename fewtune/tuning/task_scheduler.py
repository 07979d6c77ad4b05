"""Which tasks get the next batch: those where it lowers the model's latency most.

The gradient is that of Ansor's task scheduler (Zheng et al. 2020, section 6): what a task gained
lately, and what it could still gain at best: in proportion to the batches spent, but no more than
what separates it from the throughput of the best similar task. A task's weight is the number of
times it occurs in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fewtune.artifacts import TaskInfo

_RECENT_BATCHES = 3
_TRUST_IN_PAST = 0.2
_LEAST_REACHABLE = 0.02
# What memory decides has no bound that is known, and fewer trials to come near to it: ResNet 50's
# classifier reached two thirds of what further trials brought (an EPYC).
_LONE_HEADROOM, _LONE_STREAMED_HEADROOM = 1.25, 1.5
# What is below this part of an earlier time is a gain, not noise.
_VISIBLE = 0.995
_MOST_HALVINGS = 3
# Families whose throughput is bytes a second.
_STREAMED = "streamed "


@dataclass
class TaskProgress:
    """What tuning one task has come to so far.

    Attributes
    ----------
    name : str
    weight : int
    work : float
        Operations of one call; bytes where memory decides its time.
    family : str
        Tasks of one operator family are similar: what one of them reaches, others may. Those whose
        time memory decides are a family of their own.
    stands_for : float
        How many times its own share of the model's time its schedules are to serve: what a
        representative gains, its whole cluster may.
    default_s : float or None
        Seconds of one call under the default schedule.
    best_s : list of float
        Best seconds after each batch; infinite where nothing valid was found yet.
    trials : int
    finished : str or None
        Why no further batch goes to the task.
    """

    name: str
    weight: int
    work: float = 0.0
    family: str = ""
    stands_for: float = 1.0
    default_s: float | None = None
    best_s: list[float] = field(default_factory=list)
    trials: int = 0
    finished: str | None = None

    @staticmethod
    def of(info: TaskInfo) -> TaskProgress:
        """The progress of a task that nothing was measured of."""
        if info.is_streamed:
            return TaskProgress(info.name, info.weight, info.bytes, _STREAMED + info.operator)
        return TaskProgress(info.name, info.weight, info.flops, info.operator)

    @property
    def current_s(self) -> float:
        """The best known time, the default schedule's included."""
        known = [*self.best_s[-1:], *([self.default_s] if self.default_s is not None else [])]
        return min(known, default=float("inf"))

    @property
    def bar_s(self) -> float | None:
        """What a candidate has to beat to be measured in full; None where nothing is known."""
        return None if self.current_s == float("inf") else self.current_s

    @property
    def share_s(self) -> float:
        """What all calls take of the model's time at the best known schedule."""
        return self.weight * self.current_s

    @property
    def throughput(self) -> float:
        """Work a second at the best known time; 0 where nothing works."""
        return self.work / self.current_s


def gradient(task: TaskProgress, reached: float = float("inf")) -> float:
    """Seconds of model latency that the next batch is expected to save.

    Parameters
    ----------
    task : TaskProgress
    reached : float
        Throughput of the task of its family that is best in this.
    """
    batches = len(task.best_s)
    if batches == 0 or task.current_s == float("inf"):
        return float("inf") if batches < _RECENT_BATCHES else task.weight * 1e-12
    now = task.current_s
    before = task.default_s if task.default_s is not None else float("inf")
    earlier = min(before, task.best_s[max(0, batches - 1 - _RECENT_BATCHES)])
    span = min(_RECENT_BATCHES, batches - 1)
    past = (earlier - now) / span if span and earlier != float("inf") else 0.0
    # A task that is bound by memory never gets there; a task at the top may still gain a little.
    reachable = max(now - task.work / reached, _LEAST_REACHABLE * now) / batches
    # An awkward extent may never get there either: hope fades with each batch that brought nothing.
    reachable *= 0.5 ** min(_MOST_HALVINGS, max(0, _fruitless(task.best_s) - 1))
    expected = _TRUST_IN_PAST * past + (1 - _TRUST_IN_PAST) * reachable
    return task.weight * task.stands_for * expected


def _fruitless(best_s: list[float]) -> int:
    """How many batches in a row, up to the last, brought no visible gain."""
    count = 0
    for before, after in zip(best_s[-2::-1], best_s[:0:-1], strict=True):
        if after < _VISIBLE * before:
            break
        count += 1
    return count


def best_rates(
    tasks: Sequence[TaskProgress], most_flops_s: float = float("inf")
) -> dict[str, float]:
    """Highest throughput by operator family.

    A family of one has nobody to be held to: it is taken to reach a quarter more than it does, but
    no more than the machine can do; half as much again where memory decides. A depthwise
    convolution never gets to the throughput of a full one.

    Parameters
    ----------
    tasks : sequence of TaskProgress
    most_flops_s : float
        Of the machine.
    """
    rates: dict[str, list[float]] = {}
    for task in tasks:
        if task.current_s not in (0.0, float("inf")):
            rates.setdefault(task.family, []).append(task.throughput)
    reached = {}
    for family, known in rates.items():
        rate = max(known)
        if len(known) == 1:
            is_streamed = family.startswith(_STREAMED)
            rate = rate * _LONE_STREAMED_HEADROOM if is_streamed else _headroom(rate, most_flops_s)
        reached[family] = rate or float("inf")
    return reached


def _headroom(rate: float, most: float) -> float:
    # What was measured was reached, whatever the machine is said to do.
    return max(rate, min(rate * _LONE_HEADROOM, most))


def in_order(
    tasks: Sequence[TaskProgress],
    allocation: Literal["gradient", "round_robin"],
    rates: dict[str, float] | None = None,
) -> list[TaskProgress]:
    """Tasks that are not finished: who gets the next batch, who after that.

    Of those that promise as much, as all do that nothing was searched of, the one that takes most
    of the model's time comes first, then the first by name.

    Parameters
    ----------
    tasks : sequence of TaskProgress
    allocation : str
        ``gradient`` or ``round_robin``.
    rates : dict of float, optional
        Throughput that tasks of a family may reach: `best_rates` of these tasks unless given.
    """
    waiting = [task for task in tasks if task.finished is None]
    if allocation == "round_robin":
        return sorted(waiting, key=lambda task: (len(task.best_s), task.name))
    gains_s = gradients(waiting, best_rates(tasks) if rates is None else rates)

    def place(task: TaskProgress) -> tuple[float, int, float, str]:
        served_s = task.stands_for * task.share_s
        return -gains_s[task.name], len(task.best_s), -served_s, task.name

    return sorted(waiting, key=place)


def gradients(tasks: Sequence[TaskProgress], rates: dict[str, float]) -> dict[str, float]:
    """By name, what `gradient` says of each task, held to the rate of its family."""
    return {task.name: gradient(task, rates.get(task.family, float("inf"))) for task in tasks}
