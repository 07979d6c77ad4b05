"""Linkers that fail, and why, in a sentence; libraries that are loaded as they lie there."""

import errno
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from fewtune.errors import MachineError
from fewtune.runtime.executable import export_library

SAID = "Compilation error:\n/usr/bin/ld: final link failed\nCommand line: g++ -shared"


class Unlinked:
    """Something built that no linker takes."""

    def export_library(self, path: str, **_: Any) -> None:
        raise RuntimeError(SAID)


def test_what_the_linker_said_is_told(tmp_path):
    with pytest.raises(MachineError, match=r"could not link model.so: /usr/bin/ld: final link"):
        export_library(Unlinked(), tmp_path / "model.so")


def test_a_full_disk_is_told_from_other_faults(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    with pytest.raises(OSError, match="No space left") as raised:
        export_library(Unlinked(), tmp_path / "model.so")
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(tmp_path)
