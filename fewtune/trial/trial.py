"""One measured candidate, as the journal holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fewtune.runtime.tvm import ms, tvm
from fewtune.trial.outcome import Outcome


@dataclass(frozen=True)
class Trial:
    """One measured candidate, as the journal holds it.

    Attributes
    ----------
    key : str
        Its trace as JSON text; two trials of the same schedule share it. As Python's lists a trace
        takes ten times the memory, and a long run keeps thousands.
    run_s : list of float or None
        Seconds of one call, a sample a repeat.
    cause : str or None
        Why there are none.
    """

    key: str
    run_s: list[float] | None
    cause: str | None

    @property
    def trace(self) -> Any:
        """The trace as JSON values."""
        return json.loads(self.key)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.run_s, self.cause)

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"trace": self.trace}
        if self.run_s is not None:
            entry["run_s"] = self.run_s
        if self.cause is not None:
            entry["cause"] = self.cause
        return entry

    @staticmethod
    def of(schedule: tvm.s_tir.Schedule, outcome: Outcome) -> Trial:
        """A candidate that was just measured."""
        return Trial(trace_key(schedule.trace), outcome.run_s, outcome.cause)

    @staticmethod
    def from_record(record: ms.database.TuningRecord) -> Trial:
        """A measured candidate, as TVM's database holds it."""
        return Trial(trace_key(record.trace), [float(s) for s in record.run_secs], None)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Trial:
        return Trial(_text(entry["trace"]), entry.get("run_s"), entry.get("cause"))


def plain(value: Any) -> Any:
    """Turn what TVM's ``as_json`` returns (its own containers) into plain Python."""
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__iter__"):
        return [plain(item) for item in value]
    if hasattr(value, "value"):
        return plain(value.value)
    return str(value)


def trace_key(trace: tvm.s_tir.schedule.Trace | None) -> str:
    """A trace as JSON text; equal traces give equal texts."""
    return _text(plain(trace.as_json()) if trace is not None else None)


def _text(trace: Any) -> str:
    return json.dumps(trace, separators=(",", ":"))
