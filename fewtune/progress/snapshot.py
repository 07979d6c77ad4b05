"""Where a run stands, as one line and as JSON."""

from __future__ import annotations

from pydantic import BaseModel


class Snapshot(BaseModel):
    """Where a run stands."""

    phase: str
    task: str
    detail: str = ""
    trials: int
    trials_total: int
    task_trials: int = 0
    default_ms: float | None = None
    best_ms: float | None = None
    estimated_latency_ms: float | None = None
    elapsed_s: float
    left_s: float | None = None
    failures: dict[str, int] = {}

    @property
    def gain(self) -> float | None:
        """How many times faster the task's best is than its default schedule."""
        return self.default_ms / self.best_ms if self.default_ms and self.best_ms else None

    def line(self) -> str:
        """The snapshot as one line of text."""
        parts = [self._head(), self.task]
        if self.detail:
            parts.append(self.detail)
        if self.gain is not None:
            parts.append(
                f"best {self.best_ms:.4g} ms, {self.gain:.2f}x of default {self.default_ms:.4g}"
            )
        elif self.best_ms is not None:
            parts.append(f"best {self.best_ms:.4g} ms")
        return " | ".join([*parts, *self._whole()])

    def standing(self) -> str:
        """Where the whole run stands, as one line of text."""
        return " | ".join([self._head(), *self._whole()])

    def _head(self) -> str:
        return f"{self.phase} {self.trials}/{self.trials_total} trials"

    def _whole(self) -> list[str]:
        parts = []
        if self.estimated_latency_ms is not None:
            parts.append(f"model about {self.estimated_latency_ms:.4g} ms")
        if self.failures:
            parts.append("failed: " + ", ".join(f"{k} {v}" for k, v in self.failures.items()))
        clock = f"{self.elapsed_s:.0f} s"
        if self.left_s is not None:
            clock += f", about {self.left_s:.0f} s left"
        return [*parts, clock]
