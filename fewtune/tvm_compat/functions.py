"""Global functions that TVM finds by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewtune.tvm_compat.start import tvm


def set_function(name: str, function: Callable[..., Any]) -> None:
    """Register a function of ours under a name, in place of an earlier one.

    TVM's time evaluator and virtual machine call Python by such names only.

    Test: tests/tvm_compat/test_functions.py::test_the_last_function_of_a_name_is_called
    """
    tvm.register_global_func(name, function, override=True)
