"""How long tuning will take, estimated from the number of tasks."""

from __future__ import annotations

from dataclasses import dataclass

# SqueezeNet, 30 tasks at 32 trials, took 25 s on two cores of a Zen 4 (results).
_DEFAULT_S = 0.026


@dataclass(frozen=True)
class PastTunings:
    """What earlier runs on this machine tuned, and how long it took.

    Attributes
    ----------
    seconds : float
        Of tuning and sharing, all runs together.
    task_trials : int
        Sum over the runs of tasks times trials a task.
    runs : int
    """

    seconds: float
    task_trials: int
    runs: int


@dataclass(frozen=True)
class Estimate:
    """An estimate of the tuning time, and what it is made of."""

    seconds: float
    rule: str


def estimate(tasks: int, trials: int, past: PastTunings | None = None) -> Estimate:
    """Estimate the seconds of selective tuning.

    Parameters
    ----------
    tasks : int
        Distinct kernels of the model.
    trials : int
        Trials a task.
    past : PastTunings, optional
        Earlier runs on this machine; without them, a rule of thumb is used.
    """
    if past is None or past.task_trials == 0:
        return Estimate(
            round(tasks * trials * _DEFAULT_S, 1),
            f"an estimate: {tasks} tasks x {trials} trials x {_DEFAULT_S} s, as SqueezeNet took "
            "on two cores",
        )
    each_s = past.seconds / past.task_trials
    return Estimate(
        round(tasks * trials * each_s, 1),
        f"an estimate: {tasks} tasks x {trials} trials x {each_s:.3f} s, as {past.runs} earlier "
        "results on this machine took",
    )
