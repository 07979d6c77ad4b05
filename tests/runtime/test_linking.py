"""Linkers that fail, and why, in a sentence; libraries that are loaded as they lie there."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewtune.errors import MachineError
from fewtune.runtime.linking import export_library, load_library
from fewtune.runtime.tvm import compiled, te, tvm

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


def adding(number: int) -> Any:
    data = te.placeholder((1,), "float32")
    result = te.compute((1,), lambda i: data[i] + number)
    module = tvm.IRModule({"main": te.create_prim_func([data, result])})
    return compiled(module, tvm.target.Target("llvm"))


def unlinked(path: Path) -> None:
    path.unlink()


def moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("old"))
    path.parent.mkdir()


@pytest.mark.parametrize("replace", [unlinked, moved])
def test_a_library_is_loaded_as_it_lies_there_now(tmp_path, replace):
    path, held, found = tmp_path / "compile" / "model.so", [], []
    path.parent.mkdir()
    for number in (1, 2):
        if held:
            replace(path)
        export_library(adding(number), path)
        # The first is held while the second is loaded from the same path.
        held.append(load_library(path))
        given, written = (tvm.runtime.tensor(np.zeros(1, "float32")) for _ in range(2))
        held[-1]["main"](given, written)
        found.append(float(written.numpy()[0]))
    assert found == [1.0, 2.0]
