"""The garbage collector is off while modules load, and as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from fewtune.util.without_gc import without_gc


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_afterwards_what_it_was(before: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        gc.enable() if before else gc.disable()
        with pytest.raises(ImportError), without_gc():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == before
    finally:
        gc.enable() if was_enabled else gc.disable()
