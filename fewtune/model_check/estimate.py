"""How long tuning will take, estimated from the number of tasks."""

from __future__ import annotations

from dataclasses import dataclass

# Seconds for each trial of each task: SqueezeNet, 30 tasks with 32 trials each, took 25 s on two
# cores of a Zen 4 (results).
_DEFAULT_S = 0.026


@dataclass(frozen=True)
class PastTunings:
    """The work and the time of earlier runs on this machine.

    Attributes
    ----------
    seconds : float
        Time of tuning and sharing, over all runs.
    task_trials : int
        Tasks times trials per task, over all runs.
    runs : int
        Number of runs.
    """

    seconds: float
    task_trials: int
    runs: int


@dataclass(frozen=True)
class Estimate:
    """An estimate of the tuning time.

    Attributes
    ----------
    seconds : float
    rule : str
        A line that says how it was estimated.
    """

    seconds: float
    rule: str


def estimate(tasks: int, trials: int, past: PastTunings | None = None) -> Estimate:
    """Estimate the time of selective tuning.

    Parameters
    ----------
    tasks : int
        Distinct kernels of the model.
    trials : int
        Trials per task.
    past : PastTunings, optional
        Earlier runs on this machine; without them, SqueezeNet's time is used.
    """
    if past is None or past.task_trials == 0:
        return Estimate(
            round(tasks * trials * _DEFAULT_S, 1),
            f"an estimate: {tasks} tasks x {trials} trials x {_DEFAULT_S} s, as SqueezeNet took "
            "on two cores",
        )
    each_s = past.seconds / past.task_trials
    results = "result" if past.runs == 1 else "results"
    return Estimate(
        round(tasks * trials * each_s, 1),
        f"an estimate: {tasks} tasks x {trials} trials x {each_s:.3f} s, as {past.runs} earlier "
        f"{results} on this machine took",
    )
