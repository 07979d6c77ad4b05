"""The outcome of a candidate."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fewtune.trial.worker_reply import Failure

# The cause of failure of a candidate with wrong outputs.
WRONG_OUTPUT = "wrong_output"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one candidate: its times, or the cause of its failure.

    Attributes
    ----------
    run_s : list of float or None
        Seconds of one call, one sample for each repeat.
    cause : str or None
    message : str
    is_checked : bool
        Whether its outputs were compared with those of its task; for candidates with times.
    """

    run_s: list[float] | None
    cause: str | None = None
    message: str = ""
    is_checked: bool = True

    @staticmethod
    def failed(failure: Failure) -> Outcome:
        """The outcome of a candidate that was not measured."""
        return Outcome(None, failure.cause, failure.message)

    @property
    def median_s(self) -> float:
        """Median seconds of one call; infinite for a failed candidate."""
        return statistics.median(self.run_s) if self.run_s else float("inf")
