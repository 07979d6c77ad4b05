"""Selective tuning for TVM MetaSchedule: tune few tasks, serve them all."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from fewtune.process.child_python import end_by_interrupts_while_loading

if TYPE_CHECKING:
    from fewtune.api import TunedModel as TunedModel
    from fewtune.api import tune as tune
    from fewtune.deploy.bundle import bundle as bundle
    from fewtune.deploy.session import InferenceSession as InferenceSession
    from fewtune.deploy.session import SessionOptions as SessionOptions
    from fewtune.deploy.session import load as load
    from fewtune.errors import FewtuneError as FewtuneError
    from fewtune.errors import InputError as InputError
    from fewtune.errors import JournalError as JournalError
    from fewtune.errors import MachineError as MachineError
    from fewtune.errors import VerificationError as VerificationError
    from fewtune.model_check.check import check as check
    from fewtune.model_check.report import CheckReport as CheckReport

__version__ = "0.3.0"
end_by_interrupts_while_loading(__name__)
# onnxruntime's telemetry writes $TMPDIR/.ses when it is imported, and would follow another user's
# link of that name.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
_HOMES = {
    "api": ("TunedModel", "tune"),
    "deploy.bundle": ("bundle",),
    "deploy.session": ("InferenceSession", "SessionOptions", "load"),
    "errors": ("FewtuneError", "InputError", "JournalError", "MachineError", "VerificationError"),
    "model_check.check": ("check",),
    "model_check.report": ("CheckReport",),
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """Load the API when it is first used, so that `import fewtune` is fast: TVM takes seconds."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the API, loaded or not."""
    return sorted({*globals(), *__all__})
