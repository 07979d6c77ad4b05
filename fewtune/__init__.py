"""Selective tuning for TVM MetaSchedule: tune few tasks, serve them all."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewtune.api import CheckReport, TunedModel, check, load, tune

__version__ = "0.1.0"
__all__ = ["CheckReport", "TunedModel", "check", "load", "tune"]


def __getattr__(name: str) -> Any:
    """Load the API when it is first asked for: TVM takes seconds, `import fewtune` none."""
    if name in __all__:
        return getattr(importlib.import_module("fewtune.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
