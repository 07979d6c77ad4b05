"""In which state the machine was while it measured: what its cores had of each other's caches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fewtune.artifacts import Comparison, Distance, Spread
from fewtune.hand_over import is_far
from fewtune.interleave import Samples
from fewtune.table import number


def distance_of(samples_s: Samples, hand_over_s: Sequence[float]) -> Distance | None:
    """Tell rounds in which the cores were far from each other from the others.

    Parameters
    ----------
    samples_s : dict of list of float
        Of every variant, seconds of one call, a sample a round; one that was in fewer rounds is
        left out.
    hand_over_s : sequence of float
        What the cores took to hand data over, a figure a round (`fewtune.hand_over`).

    Returns
    -------
    distance : Distance or None
        None where nothing was handed over.
    """
    if not hand_over_s:
        return None
    least_s = min(hand_over_s)
    far = [is_far(time_s, least_s) for time_s in hand_over_s]

    def chosen(taken: Sequence[float], there: bool) -> list[float]:
        return [time_s for time_s, at in zip(taken, far, strict=True) if at == there]

    def medians_ms(there: bool) -> dict[str, float]:
        whole = {name: taken for name, taken in samples_s.items() if len(taken) == len(far)}
        found = {name: chosen(taken, there) for name, taken in whole.items()}
        return {
            name: 1e3 * statistics.median(times_s) for name, times_s in found.items() if times_s
        }

    # The least of all is never far.
    near_s, far_s = chosen(hand_over_s, False), chosen(hand_over_s, True)
    return Distance(
        rounds=len(far),
        far_rounds=sum(far),
        near_us=1e6 * statistics.median(near_s),
        far_us=1e6 * statistics.median(far_s) if far_s else None,
        near_ms=medians_ms(False),
        far_ms=medians_ms(True),
    )


def distance_text(distance: Distance) -> str:
    """One sentence about the rounds of both kinds."""
    text = f"64 KB went from core to core in {number(distance.near_us)} us"
    if not distance.far_rounds:
        return text + " in all rounds"
    figures = ", ".join(
        f"{name} {number(far_ms)} instead of {number(distance.near_ms[name])} ms"
        for name, far_ms in distance.far_ms.items()
        if name in distance.near_ms
    )
    return (
        f"{text}, in {number(distance.far_us)} us in {distance.far_rounds} of {distance.rounds} "
        f"rounds, in which the host had the cores apart ({figures})"
    )


def distance_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """What data took from core to core in the comparisons' rounds: one line, where it is known."""
    models = [
        f"{each.model} {distance_text(each.distance)}"
        for each in comparisons
        if each.distance is not None and each.distance.far_rounds
    ]
    return [f"The cores' distance: {'; '.join(models)}."] if models else []


def shared_cache_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """What the cores' shared cache moved in the comparisons' rounds: one line, where it is known.

    It tells in which of its states the machine was (`fewtune.shared_cache`).
    """
    models = [
        f"{each.model} {spread_text(each.shared_cache_gb_s)}"
        for each in comparisons
        if each.shared_cache_gb_s is not None
    ]
    if not models:
        return []
    return [
        "What the cores' shared cache moved in these measurements, GB/s [p10 - p90] (triad): "
        f"{', '.join(models)}."
    ]


def spread_text(spread: Spread) -> str:
    """A median with what a tenth of the rounds stayed under, and over."""
    return f"{number(spread.median)} [{number(spread.p10)} - {number(spread.p90)}]"
