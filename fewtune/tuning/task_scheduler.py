"""Which tasks get the next batch: those where it lowers the model's latency most.

The gradient is that of Ansor's task scheduler (Zheng et al. 2020, section 6). It weighs two gains:
the task's recent gain, and its possible gain, which is the distance to the throughput of the best
similar task divided by the batches spent. A task's weight is the number of times it occurs in the
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fewtune.artifacts import TaskInfo

_RECENT_BATCHES = 3
_TRUST_IN_PAST = 0.2
_LEAST_REACHABLE = 0.02
# A task bound by memory has no known limit, and fewer trials to come near it: ResNet 50's dense
# layer had reached two thirds of what further trials brought (an EPYC).
_LONE_HEADROOM, _LONE_STREAMED_HEADROOM = 1.25, 1.5
# A time below this part of an earlier one is a gain, not noise.
_VISIBLE = 0.995
_MOST_HALVINGS = 3
# Families whose throughput is bytes a second.
_STREAMED = "streamed "
# The inner loops of these operators are the same product of a register tile, so that each may reach
# the throughput of the others.
_PRODUCTS = frozenset({"batch_matmul", "conv1d", "conv2d", "conv3d", "dense"})


@dataclass
class TaskProgress:
    """How far the tuning of one task is.

    Attributes
    ----------
    name : str
    weight : int
    work : float
        Operations of one call; bytes for a task bound by memory.
    family : str
        Operator family: tasks of one family may reach the same throughput. Tasks bound by memory
        are a family of their own.
    kind : str
        The same with all products of floats, and all of bytes, in one.
    stands_for : float
        Share of the model's time that the task's schedules will serve, over its own share. The
        whole cluster may gain what its representative gains.
    default_s : float or None
        Seconds of one call under the default schedule.
    best_s : list of float
        Best seconds after each batch; infinite while nothing valid is found.
    trials : int
    finished : str or None
        Why no further batch goes to the task.
    """

    name: str
    weight: int
    work: float = 0.0
    family: str = ""
    kind: str = ""
    stands_for: float = 1.0
    default_s: float | None = None
    best_s: list[float] = field(default_factory=list)
    trials: int = 0
    finished: str | None = None

    @staticmethod
    def of(info: TaskInfo) -> TaskProgress:
        """The progress of a task before its first measurement."""
        family, work = info.operator, info.flops
        if info.is_streamed:
            family, work = _STREAMED + info.operator, info.bytes
        kind = f"product {bool(info.byte_flops)}" if info.operator in _PRODUCTS else family
        # One of another shape does not occur in the model as it is estimated.
        return TaskProgress(info.name, info.weight or 1, work, family, kind)

    @property
    def current_s(self) -> float:
        """The best known seconds of one call, the default schedule included."""
        known = [*self.best_s[-1:], *([self.default_s] if self.default_s is not None else [])]
        return min(known, default=float("inf"))

    @property
    def bar_s(self) -> float | None:
        """Seconds that a candidate must beat to be measured in full; None if nothing is known."""
        return None if self.current_s == float("inf") else self.current_s

    @property
    def share_s(self) -> float:
        """Seconds of all its calls in the model, with the best known schedule."""
        return self.weight * self.current_s

    @property
    def throughput(self) -> float:
        """Work a second at the best known time; 0 while nothing works."""
        return self.work / self.current_s


def gradient(task: TaskProgress, reached: float = float("inf")) -> float:
    """Seconds of model latency that the next batch is expected to save.

    Parameters
    ----------
    task : TaskProgress
    reached : float
        Best throughput of its family.
    """
    batches = len(task.best_s)
    if batches == 0 or task.current_s == float("inf"):
        return float("inf") if batches < _RECENT_BATCHES else task.weight * 1e-12
    now = task.current_s
    before = task.default_s if task.default_s is not None else float("inf")
    earlier = min(before, task.best_s[max(0, batches - 1 - _RECENT_BATCHES)])
    span = min(_RECENT_BATCHES, batches - 1)
    past = (earlier - now) / span if span and earlier != float("inf") else 0.0
    # Some tasks never reach that throughput, and the best one may still gain a little.
    reachable = max(now - task.work / reached, _LEAST_REACHABLE * now) / batches
    # Awkward extents may make it unreachable: each batch without a gain halves the expectation.
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

    A family of one task has nothing to compare with. It is assumed to reach 1.25 times its rate, or
    1.5 times if it is bound by memory, but no more than the machine's peak.

    Parameters
    ----------
    tasks : sequence of TaskProgress
    most_flops_s : float
        Operations a second that the machine can do.
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
    # A measured rate was reached, even if it is above the machine's peak.
    return max(rate, min(rate * _LONE_HEADROOM, most))


def in_order(
    tasks: Sequence[TaskProgress],
    allocation: Literal["gradient", "round_robin"],
    rates: dict[str, float] | None = None,
) -> list[TaskProgress]:
    """Unfinished tasks in the order in which they get batches.

    Of tasks with equal gradients, such as all that were not searched yet, the one that takes most
    of the model's time comes first, then the first by name.

    Parameters
    ----------
    tasks : sequence of TaskProgress
    allocation : str
        ``gradient`` or ``round_robin``.
    rates : dict of float, optional
        Throughput that each family may reach; `best_rates` of these tasks unless given.
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
    """The `gradient` of each task by name, with the rate of its family."""
    return {task.name: gradient(task, rates.get(task.family, float("inf"))) for task in tasks}
