"""Which schedules take part in finals in the model, and in duels: a few of each task's fastest.

Kernels that take long have one contender. Of 36 that took over a millisecond (SSD512, VGG 19 and
YOLOv3; a Xeon), finals preferred another schedule than the fastest alone for two. For VGG 19 they
took 6.3 of 28.4 s of tuning, and gained nothing that can be told from noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from fewtune.schedule.space.transfer import parallel_axis
from fewtune.trial.trial import Trial


@dataclass(frozen=True)
class FinalistRules:
    """How fast a contender is, and how much of the model's time its task takes.

    Attributes
    ----------
    near : float
        A contender takes at most this many times the fastest, measured alone.
    near_other : float
        The same for a contender that splits the usual axis: its neighbours can gain more than it
        loses.
    as_fast : float
        Two schedules are equally fast if one takes at most this many times the other.
    heavy, light, slight : float
        Parts of the model's time. A task sends all its contenders from ``heavy`` on, half of them
        from ``light`` on, and one that splits the usual axis from ``slight`` on. Smaller tasks are
        not worth the compilation. Measured alone, a task's part is inexact: one of MobileNet V2's
        takes 0.05 ms alone and 0.1 ms in the model.
    long_s : float
        A kernel that takes so many seconds a call has one contender: it reads more than the caches
        hold, so that it finds its data in the same place, alone and in the model.
    least_contested : float
        No finals are held if the tasks with several contenders take less than this part.
    """

    near: float = 1.2
    near_other: float = 1.5
    as_fast: float = 1.03
    heavy: float = 0.01
    light: float = 0.005
    slight: float = 0.002
    long_s: float = 1e-3
    least_contested: float = 0.25

    def room(self, part: float, most: int) -> int:
        """How many contenders a task may send; ``part`` is its part of the model's time."""
        return most if part >= self.heavy else most // 2


RULES = FinalistRules()


def contenders_of(
    ranked: list[Trial], part: float, most: int, rules: FinalistRules = RULES
) -> list[Trial]:
    """A task's schedules near its fastest, measured alone.

    Parameters
    ----------
    ranked : list of Trial
        The fastest alone first.
    part : float
        The task's part of the model's time.
    most : int
        Contenders of a heavy task.
    rules : FinalistRules
    """
    if part < rules.light:
        return ranked[:1]
    return _near(ranked, rules.near)[: max(1, rules.room(part, most))]


def contenders_in_model(
    ranked: list[Trial],
    part: float,
    most: int,
    usual: int | None = None,
    rules: FinalistRules = RULES,
) -> list[Trial]:
    """A task's schedules that may be the fastest in the model (`fewtune.timing.interference`).

    A kernel that splits another axis among the threads than its neighbours makes half of the data
    cross from one core's cache to the other's. A kernel may gain by that alone, but the model is
    faster if all kernels split the same axis. On an EPYC, with contenders of both kinds, two
    depthwise convolutions of MobileNet V2 were split by columns, since half of the runs had written
    their input by columns; after kernels split by rows they took 0.13 instead of 0.09 ms.

    So if the fastest alone splits the usual axis, all contenders do. If not, one contender does,
    and up to half of them in a heavy task.

    Parameters
    ----------
    ranked, part, most, rules
        As of `contenders_of`.
    usual : int, optional
        The axis that default schedules split; None if any axis is as good.

    Returns
    -------
    contenders : list of Trial
        The first is the fastest alone, or one equally fast that splits the usual axis. Another
        one wins only if it is faster in every process.
    """
    if ranked and ranked[0].outcome.median_s >= rules.long_s:
        return ranked[:1]
    found = contenders_of(ranked, part, most, rules)
    if usual is None or part < rules.slight or most < 2:
        return found
    # The fastest alone, and one that splits the usual axis, always take part.
    room = max(2, rules.room(part, most))
    same = [trial for trial in _near(ranked, rules.near_other) if parallel_axis(trial.key) == usual]
    if not same:
        return found
    if same[0] is ranked[0]:
        return _near(same, rules.near)[: len(found)]
    same_keys = {trial.key for trial in same}
    others = [trial for trial in found if trial.key not in same_keys]
    # Half of the places, or fewer if there are not so many.
    some = same[: max(room // 2, len(found) - len(others))]
    chosen_keys = {trial.key for trial in [*some, *others[: room - len(some)]]}
    found = [trial for trial in ranked if trial.key in chosen_keys]
    alike = next(
        (t for t in _near(found, rules.as_fast) if parallel_axis(t.key) == usual), found[0]
    )
    return [alike, *(trial for trial in found if trial is not alike)]


def _near(ranked: list[Trial], ratio: float) -> list[Trial]:
    """The schedules that take at most ``ratio`` times the fastest, measured alone."""
    return [t for t in ranked if t.outcome.median_s <= ratio * ranked[0].outcome.median_s]


def contested(
    ranked: dict[str, list[Trial]],
    times_s: dict[str, float],
    most: int,
    usual: dict[str, int | None],
    rules: FinalistRules = RULES,
) -> dict[str, list[Trial]]:
    """Every task's contenders; empty if too little of the model's time is contested.

    Parameters
    ----------
    ranked : dict of list of Trial
        By task, the fastest alone first.
    times_s : dict of float
        Seconds of the model that each task takes.
    most : int
        Contenders of a heavy task.
    usual : dict of int or None
        Each task's `usual_axis`.
    rules : FinalistRules
    """
    whole_s = sum(times_s.values())
    found = {
        name: contenders_in_model(trials, times_s[name] / whole_s, most, usual.get(name), rules)
        for name, trials in ranked.items()
    }
    contested_s = sum(times_s[name] for name, trials in found.items() if len(trials) > 1)
    return found if whole_s and contested_s >= rules.least_contested * whole_s else {}
