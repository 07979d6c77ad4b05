"""Contexts: one that blocks share, and the collector as it was before an import."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fewtune.util.contexts import SharedContext, loading, without_gc


def test_the_first_block_enters_and_the_last_leaves() -> None:
    shared, told = SharedContext(), []

    @contextmanager
    def made() -> Iterator[None]:
        told.append("entered")
        yield
        told.append("left")

    first, second = shared.entered(made), shared.entered(made)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert told == ["entered"]
    second.__exit__(None, None, None)
    with shared.entered(made):
        assert told == ["entered", "left", "entered"]


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


def test_what_is_loaded_for_good_is_not_scanned_again() -> None:
    try:
        with without_gc(for_good=True):
            kept = [object()]
            kept.append(kept)
        assert gc.get_freeze_count() > 0
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_a_module_is_loaded_while_the_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "loaded_in_another_thread"
    (tmp_path / f"{name}.py").write_text("import threading\nTHREAD = threading.get_ident()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loading(name):
        pass
    assert threading.get_ident() != sys.modules.pop(name).THREAD


def test_a_module_that_cannot_be_loaded_does_not_end_the_block() -> None:
    with loading("fewtune.no_such_module"):
        reached = True
    assert reached
