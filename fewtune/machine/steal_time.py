"""Time that a machine's host keeps from its cores: on a shared host, it affects all measurements.

A virtual machine's core may be ready to run and have to wait while the host runs another one. Linux
counts that as steal time (``man 5 proc_stat``). The use of caches and memory bandwidth by others is
not counted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
# The eighth figure of a core's line, after the label.
_STEAL = 8


def stolen_s(stat: Path = STAT) -> float:
    """Seconds since the machine's start that the host kept from a core: the usable cores' mean.

    Parameters
    ----------
    stat : Path
        Where Linux reports it; if there is no such file, the answer is 0.
    """
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0.0
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = [
        int(figures[_STEAL])
        for figures in map(str.split, lines)
        if len(figures) > _STEAL and figures[0] in usable
    ]
    return sum(ticks) / len(ticks) / os.sysconf("SC_CLK_TCK") if ticks else 0.0


class Stolen:
    """Measures the time that the host keeps from now on.

    Parameters
    ----------
    stat : Path
        As for `stolen_s`.
    """

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._began_s, self._stolen_s = time.perf_counter(), stolen_s(stat)

    def pct(self) -> float:
        """Per cent of the cores' time until now."""
        passed_s = time.perf_counter() - self._began_s
        return stolen_pct(stolen_s(self._stat) - self._stolen_s, passed_s)


def stolen_pct(kept_s: float, passed_s: float) -> float:
    """Per cent of the time that passed, with one digit after the point."""
    return round(100 * kept_s / passed_s, 1) if passed_s > 0 else 0.0
