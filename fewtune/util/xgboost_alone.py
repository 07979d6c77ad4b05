"""Xgboost without the wrappers for scikit-learn and pandas."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def xgboost_alone() -> Any:
    """The module, imported in a fraction of the time.

    By itself it imports both wrappers, and scipy's statistics with them, if they are installed:
    3 s at every start of a tuning process, for classes that are not used here.
    """
    if "xgboost" not in sys.modules:
        absent = [name for name in ("sklearn", "pandas") if name not in sys.modules]
        # Python does not import a module whose entry in this table is None.
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
        try:
            importlib.import_module("xgboost")
        finally:
            for name in absent:
                del sys.modules[name]
    return sys.modules["xgboost"]
