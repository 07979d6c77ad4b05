"""Work for a process of its own, and the answer that comes back."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from fewtune import errors
from fewtune.errors import MACHINES_FAULT, FewtuneError, disk_line, last_line


class Job(BaseModel):
    """Work that a child process does; its fields are sent as JSON.

    Attributes
    ----------
    left_out : dict of str
        Optional steps that the work does without, with the reason.
    """

    model_config = ConfigDict(extra="forbid")
    # Whether the child writes to its parent's streams.
    shows_output: ClassVar[bool] = False
    environment: ClassVar[dict[str, str]] = {}
    # What a user can do if native code crashes.
    advice: ClassVar[str] = "export the model in another way, or end it before that place"

    left_out: dict[str, str] = Field(default_factory=dict)

    def run(self) -> Any:
        """Do the work; the result is made of JSON values."""
        raise NotImplementedError

    @classmethod
    def place(cls) -> str:
        """Where the child finds the class: ``module:class``."""
        return f"{cls.__module__}:{cls.__qualname__}"


class JobFailedError(RuntimeError):
    """An exception in a child that is no `FewtuneError`; ``line`` names it and its cause."""

    def __init__(self, line: str, trace: str) -> None:
        super().__init__(f"in the process for it:\n{trace}")
        self.line = line


@dataclass
class Reply:
    """A job's result, the error that a user can mend, or any other exception."""

    result: Any = None
    error: str = ""
    message: str = ""
    trace: str = ""

    @classmethod
    def of_fault(cls, fault: Exception) -> Reply:
        """An exception as the parent raises it: of the class of `fewtune.errors` that it is."""
        if isinstance(fault, FewtuneError):
            kind = next(c for c in type(fault).__mro__ if getattr(errors, c.__name__, None) is c)
            return cls(error=kind.__name__, message=str(fault))
        if isinstance(fault, MemoryError):
            return cls(error="MachineError", message="this needs more memory than there is")
        if isinstance(fault, OSError) and fault.errno in MACHINES_FAULT:
            return cls(error="MachineError", message=disk_line(fault))
        message = f"{type(fault).__name__}: {last_line(fault)}"
        trace = "".join(traceback.format_exception(fault))
        return cls(error="JobFailedError", message=message, trace=trace)

    def get(self) -> Any:
        """The result; raises if there is none."""
        if self.trace:
            raise JobFailedError(self.message, self.trace)
        if self.error:
            raise getattr(errors, self.error)(self.message)
        return self.result
