"""The likely cause of a library that is slower than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fewtune.artifacts import BenchmarkReport, KernelRow
from fewtune.util.table import number
from pipelines.records.noise import Latency, changed

_MOST_KERNELS = 5
_OTHER_KERNELS = "import_model (other kernels)"


class SlowerKernel(NamedTuple):
    """A kernel that takes longer than before, with the milliseconds of one call."""

    task: str
    # Of all its calls in one run of the model.
    lost_ms: float
    before_ms: float
    now_ms: float


class Cause(NamedTuple):
    """How a result differs from the one before it.

    ``versions`` and ``settings`` are lines such as ``numpy 2.4.1 to 2.4.2``; ``kernels`` are those
    that lost more than the noise, the largest loss first.
    """

    stage: str
    versions: tuple[str, ...]
    kernels: tuple[SlowerKernel, ...]
    settings: tuple[str, ...] = ()

    def text(self) -> str:
        """The cause in one line."""
        changes = ", ".join([*self.settings, *self.versions])
        parts = [f"first differs in {self.stage}"]
        parts.append(f"changed: {changes}" if changes else "no version or setting changed")
        slower = ", ".join(
            f"{each.task} {number(each.before_ms)} to {number(each.now_ms)} ms"
            for each in self.kernels
        )
        if slower:
            parts.append(f"slower: {slower}")
        elif self.stage != _OTHER_KERNELS:
            parts.append("no single kernel is slower")
        return "; ".join(parts)


def cause_of(
    before: BenchmarkReport, now: BenchmarkReport, settings: tuple[str, ...] = ()
) -> Cause:
    """How ``now`` differs from ``before``.

    Both are of one model and strategy on one machine; ``settings`` are those that changed.
    """
    kernels = _slower(before, now, changed(Latency.of(before), Latency.of(now)).noise)
    return Cause(_stage(before, now, kernels), _versions(before, now), tuple(kernels), settings)


def _slower(before: BenchmarkReport, now: BenchmarkReport, noise: float) -> list[SlowerKernel]:
    known = {row.task: row for row in before.kernels}
    found = []
    for row in now.kernels:
        old = known.get(row.task)
        if old is None or not _is_same_kernel(old, row):
            continue
        if not row.latency_ms or not old.latency_ms:
            continue
        if row.latency_ms > old.latency_ms * (1 + noise):
            lost_ms = row.weight * (row.latency_ms - old.latency_ms)
            found.append(SlowerKernel(row.task, lost_ms, old.latency_ms, row.latency_ms))
    return sorted(found, key=lambda each: -each.lost_ms)[:_MOST_KERNELS]


def _stage(before: BenchmarkReport, now: BenchmarkReport, slower: Sequence[SlowerKernel]) -> str:
    """The first step whose outcome differs, of those that explain the slowest kernel."""
    if now.library_sha256 is not None and now.library_sha256 == before.library_sha256:
        return "benchmark (the library is the same)"
    if not _are_same_kernels(before.kernels, now.kernels):
        return _OTHER_KERNELS
    if not slower:
        return "compile"
    worst = slower[0].task
    old, new = (
        next(row for row in report.kernels if row.task == worst) for report in (before, now)
    )
    if (old.schedule == "tuned") != (new.schedule == "tuned"):
        return f"select_tasks ({worst} was {old.schedule}, is {new.schedule})"
    if new.schedule == "tuned":
        return "tune"
    return f"share_schedules ({worst})" if new.is_searched else "compile"


def _are_same_kernels(before: Sequence[KernelRow], now: Sequence[KernelRow]) -> bool:
    old = {row.task: row for row in before}
    return old.keys() == {row.task for row in now} and all(
        old[row.task].weight == row.weight and _is_same_kernel(old[row.task], row) for row in now
    )


def _is_same_kernel(before: KernelRow, now: KernelRow) -> bool:
    """Whether two kernels of one name do the same; the importer numbers those of any model alike.

    Reports of earlier versions name no shapes.
    """
    return None in (before.shapes, now.shapes) or before.shapes == now.shapes


def _versions(before: BenchmarkReport, now: BenchmarkReport) -> tuple[str, ...]:
    old, new = (
        {**it.fingerprint.versions, **it.peers, "fewtune": it.commit or "none"}
        for it in (before.conditions, now.conditions)
    )
    return tuple(
        f"{name} {old.get(name, 'none')} to {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )
