"""One measured candidate, as the journal holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fewtune.runtime.tvm import ms, tvm
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome


@dataclass(frozen=True)
class Trial:
    """One measured candidate, as the journal holds it.

    Attributes
    ----------
    key : str
        Its trace as JSON text; two trials of the same schedule share it. As Python's lists a trace
        takes ten times the memory, and a long run keeps thousands.
    run_s : list of float or None
        Seconds of one call, one sample for each repeat.
    cause : str or None
        Why there are no times.
    is_checked : bool
        Whether its outputs were compared with those of its task (`fewtune.schedule_check`), if it
        has times.
    fault : str
        What is wrong with its outputs, if that is the cause.
    """

    key: str
    run_s: list[float] | None
    cause: str | None
    is_checked: bool = True
    fault: str = ""

    @property
    def trace(self) -> Any:
        """The trace as JSON values."""
        return json.loads(self.key)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.run_s, self.cause, self.fault, self.is_checked)

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"trace": self.trace}
        if self.run_s is not None:
            entry["run_s"] = self.run_s
        if self.cause is not None:
            entry["cause"] = self.cause
        else:
            entry["checked"] = self.is_checked
        if self.fault:
            entry["fault"] = self.fault
        return entry

    @staticmethod
    def of(schedule: tvm.s_tir.Schedule, outcome: Outcome) -> Trial:
        """A candidate that was just measured."""
        return Trial.measured(trace_key(schedule.trace), outcome)

    @staticmethod
    def measured(key: str, outcome: Outcome) -> Trial:
        """The same, given its trace."""
        fault = outcome.message if outcome.cause == WRONG_OUTPUT else ""
        return Trial(key, outcome.run_s, outcome.cause, outcome.is_checked, fault)

    @staticmethod
    def from_record(record: ms.database.TuningRecord) -> Trial:
        """A measured candidate, as TVM's database holds it."""
        run_s = [float(s) for s in record.run_secs]
        return Trial(trace_key(record.trace), run_s, None)

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Trial:
        cause = entry.get("cause")
        is_checked = cause is not None or bool(entry.get("checked"))
        return Trial(
            _text(entry["trace"]), entry.get("run_s"), cause, is_checked, entry.get("fault", "")
        )


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
