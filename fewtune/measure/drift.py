"""Candidates that were measured at different times, made comparable.

Where the host moves the machine's cores apart for seconds (`fewtune.machine.core_to_core`),
kernels take longer that read what the other core wrote: MobileNet V2's depthwise convolutions of
small planes 1.3 to 1.9 times as long, most others 1.05 to 1.1 times, one that reads its weights
from memory 0.6 times. Candidates that differ by two hundredths are then told apart by when they
were measured.

A task's fastest candidate so far lives on in its worker. When the cores have come into another
state than it was measured in, it is measured once more, and what the task's candidates take in that
state is divided by how many times as long it takes there. In a steady state nothing is added.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable
from typing import NamedTuple

from fewtune.machine.core_to_core import same_state
from fewtune.timing.buffers import Specs
from fewtune.timing.calibration import Measured
from fewtune.trial.outcome import Outcome
from fewtune.trial.worker_reply import Built, RequestFailedError, WorkerLostError

# A factor beyond these tells of something else than the state of the cores.
_LEAST_PACE, _MOST_PACE = 0.4, 2.5


class _Fastest(NamedTuple):
    """A race's fastest candidate: what it took, by the race's scale, and in which state."""

    built: Built
    specs: Specs
    run_s: float
    scaled_s: float
    hand_over_s: float


class Yardsticks:
    """How many times as long a race's candidates take now as by the race's scale.

    The scale is that of the state in which a race's first candidate was measured.

    Parameters
    ----------
    measure : callable
        Races a candidate that was built, against a bar in seconds.
    lives : callable
        Whether its worker still has it.
    """

    def __init__(
        self,
        measure: Callable[[Built, Specs, float | None], Measured],
        lives: Callable[[Built], bool],
    ) -> None:
        self._measure = measure
        self._lives = lives
        self._now_s: float | None = None
        self._fastest: dict[Hashable, _Fastest] = {}
        # By race, what its fastest of this moment took in other states: hand-overs, and paces.
        self._elsewhere: dict[Hashable, list[tuple[float, float]]] = {}

    def outcome(self, race: Hashable, built: Built, specs: Specs, bar_s: float | None) -> Outcome:
        """Race a candidate, and tell what it took by the race's scale.

        Parameters
        ----------
        race : hashable
        built : Built
        specs : Specs
            Of its buffers.
        bar_s : float or None
            What it has to beat, by that scale.

        Raises
        ------
        WorkerLostError, RequestFailedError
            As the measurement does.
        """
        measured = self._measure(built, specs, bar_s and bar_s * self._expected(race))
        pace = self._pace(race, measured.hand_over_s)
        run_s, hand_over_s = statistics.median(measured.run_s), measured.hand_over_s
        if hand_over_s is not None:
            self._take(race, _Fastest(built, specs, run_s, run_s / pace, hand_over_s))
        return Outcome([time_s / pace for time_s in measured.run_s], pace=pace)

    def _expected(self, race: Hashable) -> float:
        """The pace by what is known already, in the state that was seen last."""
        fastest = self._fastest.get(race)
        if fastest is None or self._now_s is None:
            return 1.0
        return self._known(race, fastest, self._now_s) or 1.0

    def _pace(self, race: Hashable, hand_over_s: float | None) -> float:
        """The pace of a candidate after which the cores handed data over in such a time."""
        self._now_s = hand_over_s
        fastest = self._fastest.get(race)
        if fastest is None or hand_over_s is None:
            return 1.0
        known = self._known(race, fastest, hand_over_s)
        if known is not None:
            return known
        measured = self._again(fastest)
        if measured is None or measured.hand_over_s is None:
            return 1.0
        self._now_s = measured.hand_over_s
        if not same_state(measured.hand_over_s, hand_over_s):
            # They moved again meanwhile: of the state that they were in nothing is known.
            return 1.0
        pace = statistics.median(measured.run_s) / fastest.scaled_s
        if not _LEAST_PACE <= pace <= _MOST_PACE:
            # Remembered like any other: the race's next candidates need not find it out again.
            pace = 1.0
        self._elsewhere.setdefault(race, []).append((hand_over_s, pace))
        return pace

    def _again(self, fastest: _Fastest) -> Measured | None:
        if not self._lives(fastest.built):
            return None
        try:
            return self._measure(fastest.built, fastest.specs, None)
        except (WorkerLostError, RequestFailedError):
            return None

    def _take(self, race: Hashable, measured: _Fastest) -> None:
        """Take in a candidate: the fastest by the scale is what the others meet."""
        fastest = self._fastest.get(race)
        if fastest is None or measured.scaled_s < fastest.scaled_s:
            self._fastest[race] = measured
            self._elsewhere.pop(race, None)

    def _known(self, race: Hashable, fastest: _Fastest, hand_over_s: float) -> float | None:
        if same_state(fastest.hand_over_s, hand_over_s):
            return fastest.run_s / fastest.scaled_s
        others = self._elsewhere.get(race, [])
        return next((pace for seen_s, pace in others if same_state(seen_s, hand_over_s)), None)
