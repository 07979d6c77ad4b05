"""A batch of candidates: the time that each has to beat, and its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from fewtune.schedule_check.check import ScheduleCheck
from fewtune.timing.buffers import Specs
from fewtune.trial.outcome import Outcome
from fewtune.trial.worker_reply import Built
from fewtune.workers.build_cache import Kept


@dataclass
class Batch:
    """The candidates of one batch, by their places in it.

    Parameters
    ----------
    specs : sequence of Specs
        Their buffers.
    best_s : sequence of float or None
        Seconds that each has to beat to be measured in full.
    races : sequence of hashable
        Candidates of one race also have to beat each other.
    keys : sequence of tuple of str, optional
        Workload and trace of each.
    checks : sequence of ScheduleCheck, optional
        The check of each one's outputs.
    """

    specs: Sequence[Specs]
    best_s: Sequence[float | None]
    races: Sequence[Hashable]
    keys: Sequence[tuple[str, str]] | None = None
    checks: Sequence[ScheduleCheck] | None = None
    _fastest_s: dict[Hashable, float] = field(init=False, default_factory=dict)
    _ended: dict[int, tuple[Outcome, Built | None]] = field(init=False, default_factory=dict)

    def bar_s(self, place: int) -> float | None:
        """Seconds that a candidate has to beat; None if nothing is known."""
        known = [self.best_s[place], self._fastest_s.get(self.races[place])]
        return min((time_s for time_s in known if time_s is not None), default=None)

    def end(self, place: int, outcome: Outcome, built: Built | None) -> None:
        """Take in a candidate's outcome, and the build that was measured."""
        self._ended[place] = outcome, built
        if outcome.run_s:
            race = self.races[place]
            fastest_s = self._fastest_s.get(race, outcome.median_s)
            self._fastest_s[race] = min(fastest_s, outcome.median_s)

    def settle(self, failures: Counter[str], kept: Kept | None) -> list[Outcome]:
        """Count the failures and keep the fastest builds, in the order of the batch.

        Parameters
        ----------
        failures : Counter
            By cause; added to.
        kept : Kept, optional
            None where builds are not kept.

        Returns
        -------
        outcomes : list of Outcome
        """
        outcomes = []
        for place in range(len(self._ended)):
            outcome, built = self._ended[place]
            outcomes.append(outcome)
            if outcome.cause:
                failures[outcome.cause] += 1
            elif kept is not None and self.keys is not None and built is not None:
                kept.take(*self.keys[place], built, outcome.median_s)
        return outcomes
