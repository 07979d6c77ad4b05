"""Which candidates are checked, and what a check costs: the option object of a measurer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fewtune.schedule_check.check import ScheduleCheck, Verdict
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome
from fewtune.trial.worker_reply import Built, Failure, RequestFailedError, WorkerLostError

# A task's first check may have to compile and run its kernel without any schedule.
_LIMIT_S = 120.0
# One that costs more is made only of what beats the fastest so far. The 411 MB of weights of VGG
# 19's first product are laid out and copied for each, and all its candidates wait for memory alike.
_DEAR_S = 0.1


@dataclass
class Checking:
    """Decides which candidates are compared with what their tasks compute.

    Parameters
    ----------
    is_on : bool
        Whether any is. A device whose runs cost much may do without; nothing that it measured
        counts as checked then.
    within : float
        Candidates are checked that take at most so many times the fastest of their task so far:
        others do not win, and take part in no finals. Where a check costs much, only those that are
        the fastest so far.

    Attributes
    ----------
    checks, wrong : int
        Candidates that were checked, and those whose outputs were wrong.
    spent_s, reference_s : float
        Seconds that the workers took for it, and, of these, for what is right.
    """

    is_on: bool = True
    within: float = 1.2
    checks: int = 0
    wrong: int = 0
    spent_s: float = 0.0
    reference_s: float = 0.0
    # Of each task's last check, without its reference.
    _cost_s: dict[str, float] = field(default_factory=dict)

    def is_due(self, wanted: ScheduleCheck, time_s: float, best_s: float | None) -> bool:
        """Whether a candidate that took so long is checked, where the fastest took ``best_s``."""
        if not self.is_on:
            return False
        cost_s = self._cost_s.get(wanted.key)
        within = 1.0 if cost_s is not None and cost_s > _DEAR_S else self.within
        return best_s is None or time_s <= within * best_s

    def checked(
        self,
        outcome: Outcome,
        ask: Callable[..., Verdict],
        built: Built,
        wanted: ScheduleCheck,
        bar_s: float | None,
    ) -> Outcome:
        """The outcome of a candidate, once its outputs were compared, if they are.

        Parameters
        ----------
        outcome : Outcome
            As it was measured.
        ask, built, wanted
            As of `verdict`.
        bar_s : float or None
            Seconds that it had to beat.
        """
        if not outcome.run_s:
            return outcome
        if not self.is_due(wanted, outcome.median_s, bar_s):
            return replace(outcome, is_checked=False)
        failure = self.verdict(ask, built, wanted)
        return outcome if failure is None else Outcome.failed(failure)

    def verdict(
        self, ask: Callable[..., Verdict], built: Built, wanted: ScheduleCheck
    ) -> Failure | None:
        """Have a candidate checked where it was measured.

        Parameters
        ----------
        ask : callable
            Sends a request there, with a limit in seconds, and waits for the answer.
        built : Built
        wanted : ScheduleCheck

        Returns
        -------
        failure : Failure or None
            None where its outputs are right.
        """
        try:
            verdict = ask("check", built.number, wanted, timeout_s=_LIMIT_S)
        except (WorkerLostError, RequestFailedError) as fault:
            return Failure.of(fault, running=True)
        self.checks += 1
        self.spent_s += verdict.spent_s
        self.reference_s += verdict.reference_s
        self._cost_s[wanted.key] = verdict.spent_s - verdict.reference_s
        if verdict.is_right:
            return None
        self.wrong += 1
        return Failure(WRONG_OUTPUT, verdict.fault)
