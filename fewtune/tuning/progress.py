"""What a person sees while tuning runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pydantic import BaseModel

from fewtune.files import canonical_json, write_text

if TYPE_CHECKING:
    from fewtune.tuning.live import LiveView


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


class Progress:
    """Shows snapshots and leaves the last one in a file for others to read.

    Parameters
    ----------
    path : Path, optional
        File that holds the latest snapshot as JSON.
    stream : TextIO
        Where to show; a terminal gets a table that is redrawn, anything else plain lines.
    """

    def __init__(self, path: Path | None = None, stream: TextIO | None = None) -> None:
        self.path = path
        self.stream = stream or sys.stdout
        self._live: LiveView | None = None
        if self.stream.isatty():
            from fewtune.tuning.live import LiveView

            self._live = LiveView(self.stream)

    def show(self, snapshot: Snapshot) -> None:
        """Show where the run stands now."""
        if self.path is not None:
            write_text(self.path, canonical_json(snapshot.model_dump()))
        if self._live is not None:
            self._live.show(snapshot)
        else:
            self.stream.write(snapshot.line() + "\n")
            self.stream.flush()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self._live is not None:
            self._live.say(text)
        else:
            self.stream.write(text + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Leave the last view as it stands."""
        if self._live is not None:
            self._live.close()
