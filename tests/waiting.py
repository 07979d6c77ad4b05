"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

Came = TypeVar("Came")


def until(came: Callable[[], Came], limit_s: float = 120.0, pause_s: float = 0.02) -> Came:
    """Ask until something true is answered, and return that; fail after so many seconds."""
    deadline_s = time.monotonic() + limit_s
    while not (found := came()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"it did not come within {limit_s:g} s")
        time.sleep(pause_s)
    return found
