"""Whether a measured latency was disturbed, and what that does to it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from fewtune.artifacts import LatencyStats
from fewtune.measure.quiet import Quiet
from fewtune.util.table import number

# A median of rounds hardly moves while fewer of them are disturbed.
_MOST_ROUNDS = 0.2
# Quiet machines stay below 0.1.
_MOST_NOISE = 0.2


def disturbance(
    quiets: Sequence[Quiet], latency: LatencyStats, kernels_ms: float | None = None
) -> str:
    """In one sentence what disturbed a latency; empty if nothing did.

    Parameters
    ----------
    quiets : sequence of Quiet
        Of the processes that measured it.
    latency : LatencyStats
    kernels_ms : float, optional
        The sum of the model's kernels, if it was measured.
    """
    rounds = sum(each.rounds for each in quiets)
    taken_cores = [cores for each in quiets for cores in each.taken_cores]
    parts = []
    if len(taken_cores) > _MOST_ROUNDS * rounds:
        parts.append(
            f"other processes and the host took {statistics.mean(taken_cores):.1f} of "
            f"{len(os.sched_getaffinity(0))} cores in {len(taken_cores)} of {rounds} rounds"
        )
    if latency.noise > _MOST_NOISE:
        parts.append(f"rounds differ by {100 * latency.noise:.0f} % from the median")
    if not parts:
        return ""
    fastest = f"the fastest round took {number(latency.min_ms)} ms"
    if kernels_ms:
        fastest += f", the kernels {number(kernels_ms)} ms in sum"
    return "; ".join([*parts, fastest])


def waiting_remark(quiets: Sequence[Quiet]) -> list[str]:
    """What was spent on a quiet machine, as a remark, if anything was."""
    waited_s = sum(each.waited_s for each in quiets)
    if not waited_s:
        return []
    repeated = sum(each.repeated for each in quiets)
    return [
        f"{waited_s:.0f} s were spent on waiting for a quiet machine (rounds measured again: "
        f"{repeated})"
    ]
