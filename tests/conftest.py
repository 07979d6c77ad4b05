"""The process that the tests run in, as the project's own processes are; and their order."""

from __future__ import annotations

import os

import pytest

# Before NumPy is loaded. Tuning runs with this too (fewtune.tuning.child_process): products of
# small matrices take fifty times as long where OpenBLAS's threads wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with slow tests first: of two processes, none is left with a long one.

    `make test` keeps this order (``--no-loadscope-reorder``). Otherwise the files with the fewest
    tests come last, and these are the longest.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
