"""The state of the machine during measurements: how far its cores were from each other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fewtune.artifacts import Comparison, CoreState
from fewtune.machine.core_to_core import same_state
from fewtune.measure.interleave import Samples
from fewtune.util.table import Table, number


def core_states(samples_s: Samples, hand_over_s: Sequence[float]) -> list[CoreState]:
    """Group rounds by the distance between the cores.

    Parameters
    ----------
    samples_s : dict of list of float
        By variant, seconds of one call, one sample for each round; a variant with fewer rounds is
        left out.
    hand_over_s : sequence of float
        Seconds of data from core to core, one value for each round
        (`fewtune.machine.core_to_core`).

    Returns
    -------
    states : list of CoreState
        Nearest first; none without hand-over times.
    """
    states: list[list[int]] = []
    for place in sorted(range(len(hand_over_s)), key=hand_over_s.__getitem__):
        if states and same_state(hand_over_s[states[-1][0]], hand_over_s[place]):
            states[-1].append(place)
        else:
            states.append([place])

    def median(taken: Sequence[float], places: list[int]) -> float:
        return statistics.median(taken[place] for place in places)

    whole = {name: taken for name, taken in samples_s.items() if len(taken) == len(hand_over_s)}
    return [
        CoreState(
            hand_over_us=1e6 * median(hand_over_s, places),
            rounds=len(places),
            latency_ms={name: 1e3 * median(taken, places) for name, taken in whole.items()},
        )
        for places in states
    ]


def core_states_text(states: Sequence[CoreState]) -> str:
    """The time of data from core to core, and of every variant, in each state."""
    if len(states) == 1:
        return f"in {number(states[0].hand_over_us)} us in all rounds"
    whole = sum(state.rounds for state in states)
    return ", ".join(
        f"in {number(state.hand_over_us)} us in {state.rounds} of {whole} rounds ("
        + ", ".join(f"{name} {number(took)} ms" for name, took in state.latency_ms.items())
        + ")"
        for state in states
    )


CORE_STATES_TITLE = (
    "The host moved the cores in these measurements: medians of the rounds in which 64 KB took "
    "about as long from one core to the other"
)


def core_state_table(comparisons: Sequence[Comparison]) -> Table | None:
    """The time of every variant in rounds of each state; None if the host moved no cores.

    Parameters
    ----------
    comparisons : sequence of Comparison
        Their own medians are of all rounds.
    """
    if all(len(each.core_states) < 2 for each in comparisons):
        return None
    names = list(dict.fromkeys(n for e in comparisons for s in e.core_states for n in s.latency_ms))
    rows = [
        [
            each.model,
            number(state.hand_over_us),
            str(state.rounds),
            *(number(state.latency_ms.get(name)) for name in names),
        ]
        for each in comparisons
        for state in each.core_states
    ]
    return Table(["model", "us", "rounds", *(f"{name} ms" for name in names)], rows)
