"""Selective tuning for TVM MetaSchedule: tune few tasks, serve them all."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from fewtune.process.child_python import end_by_interrupts_while_loading

if TYPE_CHECKING:
    from fewtune.api import TunedModel, tune
    from fewtune.deploy.bundle import bundle
    from fewtune.deploy.session import InferenceSession, SessionOptions, load
    from fewtune.errors import (
        FewtuneError,
        InputError,
        JournalError,
        MachineError,
        VerificationError,
    )
    from fewtune.model_check.check import check
    from fewtune.model_check.report import CheckReport

__version__ = "0.3.0"
end_by_interrupts_while_loading(__name__)
# onnxruntime's telemetry writes $TMPDIR/.ses when it is imported, and would follow another user's
# link of that name.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
_HOMES = {
    "CheckReport": "fewtune.model_check.report",
    "FewtuneError": "fewtune.errors",
    "InferenceSession": "fewtune.deploy.session",
    "InputError": "fewtune.errors",
    "JournalError": "fewtune.errors",
    "MachineError": "fewtune.errors",
    "SessionOptions": "fewtune.deploy.session",
    "TunedModel": "fewtune.api",
    "VerificationError": "fewtune.errors",
    "bundle": "fewtune.deploy.bundle",
    "check": "fewtune.model_check.check",
    "load": "fewtune.deploy.session",
    "tune": "fewtune.api",
}
__all__ = [
    "CheckReport",
    "FewtuneError",
    "InferenceSession",
    "InputError",
    "JournalError",
    "MachineError",
    "SessionOptions",
    "TunedModel",
    "VerificationError",
    "bundle",
    "check",
    "load",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load the API when it is first used, so that `import fewtune` is fast: TVM takes seconds."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
