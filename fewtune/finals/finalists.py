"""Who takes part in finals in the model, and in duels: a few of each task's fastest schedules.

Long calls take part in finals, too: after duels, which measure them alone, finals gained another
0.4 of YOLOv3's 59 ms, 1.4 of SSD512's 167 and 0.6 of VGG 19's 77, what one process chose by the
figures of another (an EPYC).
"""

from __future__ import annotations

from dataclasses import dataclass

from fewtune.schedule.space.parallel_axis import parted
from fewtune.trial.trial import Trial

# As many contenders of a task take turns alone, where no finals are held.
MOST_IN_DUEL = 4


@dataclass(frozen=True)
class FinalistRules:
    """How near and how heavy a contender has to be.

    Attributes
    ----------
    near : float
        Alone, a contender takes no longer than this many times the fastest.
    near_other : float
        The same of one that parts the usual axis among the threads: its neighbours can gain more
        than it loses.
    as_fast : float
        What is within so many times the fastest alone is as fast.
    heavy, light, slight : float
        Parts of the model's time. From ``heavy`` on, a task sends as many contenders as it may;
        from ``light`` on half of them. From ``slight`` on, what its neighbours may gain is worth
        one that parts the usual axis. Other tasks are not worth the compilation. What a task takes
        alone tells its part badly: one of MobileNet V2's takes 0.05 ms alone and 0.1 in the model.
    least_contested : float
        Where less of the model's time is contested, nothing is compiled for it.
    """

    near: float = 1.2
    near_other: float = 1.5
    as_fast: float = 1.03
    heavy: float = 0.01
    light: float = 0.005
    slight: float = 0.002
    least_contested: float = 0.25

    def room(self, part: float, most: int) -> int:
        """How many contenders a task may send, by the part of the model's time that it takes."""
        return most if part >= self.heavy else most // 2


RULES = FinalistRules()


def contenders_of(
    ranked: list[Trial], part: float, most: int, rules: FinalistRules = RULES
) -> list[Trial]:
    """Those of a task's schedules that may be its fastest alone.

    Parameters
    ----------
    ranked : list of Trial
        The fastest alone first.
    part : float
        Of the model's time that the task takes.
    most : int
        Contenders of a task that takes much of it.
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
    """Those that may be the fastest in the model, where neighbours count (`neighbours.charged`).

    What parts another axis among the threads than its neighbours do makes them, and itself, fetch
    half of their data from the other core. Each alone gains by that at times, all together by
    parting the same: with contenders of both kinds, two of MobileNet V2's depthwise convolutions
    were chosen by columns, by half of the runs in which what they read was written by columns, and
    took 0.13 instead of 0.09 ms after what was chosen by rows (an EPYC). Where the fastest alone
    parts the usual axis, all contenders therefore do. Where it does not, one that does takes part,
    and up to half of them in a task that takes much of the time.

    Parameters
    ----------
    ranked, part, most, rules
        As of `contenders_of`.
    usual : int, optional
        The axis that kernels which are not searched part; None: any is as good.

    Returns
    -------
    contenders : list of Trial
        A winner other than the first has to be faster in every process. The first is the
        fastest alone, or one that is as fast and parts the usual axis.
    """
    found = contenders_of(ranked, part, most, rules)
    if usual is None or part < rules.slight or most < 2:  # noqa: PLR2004
        return found
    # The fastest alone and one that parts the usual axis always have a place.
    room = max(2, rules.room(part, most))
    same = [trial for trial in _near(ranked, rules.near_other) if parted(trial.key) == usual]
    if not same:
        return found
    if same[0] is ranked[0]:
        return _near(same, rules.near)[: len(found)]
    same_keys = {trial.key for trial in same}
    others = [trial for trial in found if trial.key not in same_keys]
    # Half of them, as far as there are any.
    some = same[: max(room // 2, len(found) - len(others))]
    chosen_keys = {trial.key for trial in [*some, *others[: room - len(some)]]}
    found = [trial for trial in ranked if trial.key in chosen_keys]
    alike = next((t for t in _near(found, rules.as_fast) if parted(t.key) == usual), found[0])
    return [alike, *(trial for trial in found if trial is not alike)]


def _near(ranked: list[Trial], ratio: float) -> list[Trial]:
    """Those that take no longer alone than so many times the fastest."""
    return [t for t in ranked if t.outcome.median_s <= ratio * ranked[0].outcome.median_s]


def contested(
    ranked: dict[str, list[Trial]],
    times_s: dict[str, float],
    most: int,
    usual: dict[str, int | None],
    rules: FinalistRules = RULES,
) -> dict[str, list[Trial]]:
    """Every task's contenders; none at all where too little of the model is contested.

    Parameters
    ----------
    ranked : dict of list of Trial
        By task, the fastest alone first.
    times_s : dict of float
        What each task takes of the model's time.
    most : int
        Contenders of a task that takes much of it.
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
