"""One measured candidate, as the journal holds it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from fewtune.runtime.tvm import ms, tvm
from fewtune.trial.outcome import WRONG_OUTPUT, Outcome

# A variable of a trace: a block, a loop or a number.
_VARIABLE = re.compile(r"[blv]\d+")
# Of the factors of a split one may be left to TVM; padding may have no value. Elsewhere TVM reads
# the memory behind what is null.
_MAY_LACK_INPUTS, _MAY_LACK_ATTRIBUTES = {"Split", "LoopPartition"}, {"TransformLayout"}


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
        known = {
            "run_s": self.run_s,
            "cause": self.cause,
            "checked": self.is_checked if self.cause is None else None,
            "fault": self.fault or None,
        }
        # A trace may be null: there is no default schedule.
        return {"trace": self.trace} | {k: v for k, v in known.items() if v is not None}

    @staticmethod
    def measured(key: str, outcome: Outcome) -> Trial:
        """A candidate that was just measured."""
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


def is_trace(value: Any) -> bool:
    """Whether JSON is a trace as TVM writes them: no variable is used before it has a value."""
    match value:
        case [list(steps), list(decisions)]:
            known: set[Any] = set()
            return all(_is_step(step, known) for step in steps) and all(
                isinstance(each, list)
                and len(each) == 2
                and type(each[0]) is int
                and 0 <= each[0] < len(steps)
                for each in decisions
            )
    return False


def _is_step(step: Any, known: set[Any]) -> bool:
    """Whether an instruction is one; adds its results to the known variables."""
    match step:
        case [str(name), list(inputs), list(attributes), list(outputs)]:
            empty = (None in inputs and name not in _MAY_LACK_INPUTS) or (
                None in attributes and name not in _MAY_LACK_ATTRIBUTES
            )
            are_names = all(isinstance(each, str) for each in outputs)
            if empty or not are_names or not _are_known(inputs, known):
                return False
            known.update(outputs)
            return True
    return False


def _are_known(inputs: list[Any], known: set[Any]) -> bool:
    return all(
        _are_known(each, known)
        if isinstance(each, list)
        else not isinstance(each, str) or each in known or not _VARIABLE.fullmatch(each)
        for each in inputs
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
