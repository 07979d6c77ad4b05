"""Which candidates are checked, and the cost of checks: the option object of a measurer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fewtune.schedule_check.check import ScheduleCheck, Verdict
from fewtune.trial.outcome import (
    WRONG_OUTPUT,
    Failure,
    Outcome,
    RequestFailedError,
    WorkerLostError,
)

# A task's first check may have to compile and run its kernel without any schedule.
CHECK_LIMIT_S = 120.0
# A check that takes longer is made only of candidates that beat the fastest so far. For VGG 19's
# first product, each check copies 411 MB of weights into another layout, and all its candidates are
# about as fast, since they wait for memory.
_DEAR_S = 0.1


@dataclass
class Checking:
    """Decides which candidates are compared with what their tasks compute.

    Parameters
    ----------
    is_on : bool
        Whether any candidate is checked. A device with expensive runs may turn checks off; its
        candidates then do not count as checked.
    within : float
        A candidate is checked if it takes at most so many times the fastest of its task so far:
        slower ones neither win nor take part in finals. If checks are expensive, only a candidate
        that is the fastest so far is checked.

    Attributes
    ----------
    checks, wrong : int
        Numbers of candidates that were checked, and of those with wrong outputs.
    spent_s, reference_s : float
        Seconds of the workers for checks, and, of these, for the right outputs.
    cost_s : dict
        Seconds of each task's last check, by its key, without computing the right outputs.
    """

    is_on: bool = True
    within: float = 1.2
    checks: int = 0
    wrong: int = 0
    spent_s: float = 0.0
    reference_s: float = 0.0
    cost_s: dict[str, float] = field(default_factory=dict)

    def is_due(self, wanted: ScheduleCheck, time_s: float, best_s: float | None) -> bool:
        """Whether a candidate of time ``time_s`` is checked; the fastest took ``best_s``."""
        if not self.is_on:
            return False
        cost_s = self.cost_s.get(wanted.key)
        within = 1.0 if cost_s is not None and cost_s > _DEAR_S else self.within
        return best_s is None or time_s <= within * best_s

    def checked(
        self,
        outcome: Outcome,
        ask: Callable[[], Verdict],
        wanted: ScheduleCheck,
        bar_s: float | None,
    ) -> Outcome:
        """The outcome of a candidate, after its check if that is due.

        Parameters
        ----------
        outcome : Outcome
            Of the measurement.
        ask, wanted
            As of `verdict`.
        bar_s : float or None
            Seconds that it had to beat.
        """
        if not outcome.run_s:
            return outcome
        if not self.is_due(wanted, outcome.median_s, bar_s):
            return replace(outcome, is_checked=False)
        failure = self.verdict(ask, wanted)
        return outcome if failure is None else Outcome.failed(failure)

    def verdict(self, ask: Callable[[], Verdict], wanted: ScheduleCheck) -> Failure | None:
        """Check a candidate where it was measured.

        Parameters
        ----------
        ask : callable
            Has its worker check it.
        wanted : ScheduleCheck

        Returns
        -------
        failure : Failure or None
            None where its outputs are right.
        """
        try:
            verdict = ask()
        except (WorkerLostError, RequestFailedError) as fault:
            return Failure.of(fault, running=True)
        self.checks += 1
        self.spent_s += verdict.spent_s
        self.reference_s += verdict.reference_s
        self.cost_s[wanted.key] = verdict.spent_s - verdict.reference_s
        if verdict.is_right:
            return None
        self.wrong += 1
        return Failure(WRONG_OUTPUT, verdict.fault)
