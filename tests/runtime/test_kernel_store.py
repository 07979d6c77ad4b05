"""Kernels that are kept on disk: equal ones are one, and only this user's are linked."""

import os
from pathlib import Path

import numpy as np
import pytest

from fewtune.compile.compile import KEPT
from fewtune.options import CompileOptions
from fewtune.runtime import kernel_store
from fewtune.runtime.kernel_store import KernelStore
from fewtune.runtime.tvm import te, tvm
from tests import tuned_tiny
from tests.made.kernels import TARGET


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a store of this test's own; it is not made yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fewtune" / "kernels"


def adding(number: int, name: str = "main") -> tvm.tirx.PrimFunc:
    data = te.placeholder((4,), "float32", "data")
    result = te.compute((4,), lambda i: data[i] + number, "result")
    return te.create_prim_func([data, result]).with_attr("global_symbol", name)


def test_equal_kernels_are_one_and_are_built_once(folder, monkeypatch):
    store = KernelStore.of(TARGET)
    assert store is not None
    path = store.keep(adding(1))
    assert path.is_relative_to(folder)
    assert store.path(adding(2)) != path
    monkeypatch.setattr(kernel_store, "compiled", None)
    assert store.keep(adding(1, "another_name")) == path
    assert list(folder.rglob("*.o")) == [path]


def test_kept_kernels_are_called_by_the_names_that_they_are_given(folder):
    store = KernelStore.of(TARGET)
    assert store is not None
    library = store.load({"one": adding(1), "again": adding(1), "two": adding(2)})
    for name, number in (("one", 1), ("again", 1), ("two", 2)):
        result = tvm.runtime.tensor(np.zeros(4, "float32"))
        library[name](tvm.runtime.tensor(np.zeros(4, "float32")), result)
        assert result.numpy().tolist() == [number] * 4


def writable_by_all(folder: Path, _patch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def of_another(folder: Path, patch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True, mode=0o700)
    other = os.getuid() + 1
    patch.setattr(os, "getuid", lambda: other)


def elsewhere(folder: Path, _patch: pytest.MonkeyPatch) -> None:
    folder.parent.mkdir()
    (folder.parent / "other").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "other")


@pytest.mark.parametrize("make", [writable_by_all, of_another, elsewhere])
def test_a_folder_that_others_may_write_to_is_not_used(folder, monkeypatch, make):
    make(folder, monkeypatch)
    assert KernelStore.of(TARGET) is None


def test_kernels_of_another_architecture_are_not_kept(folder):
    foreign = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert KernelStore.of(foreign) is None
    assert not folder.exists()


def test_the_oldest_are_removed_if_there_are_too_many(folder, monkeypatch):
    store = KernelStore.of(TARGET)
    assert store is not None
    monkeypatch.setattr(kernel_store, "_MOST_KEPT", 3)
    paths = [store.keep(adding(number)) for number in range(4)]
    for age, path in enumerate(paths):
        os.utime(path, (age, age))
    store.tidy()
    assert set(folder.rglob("*.o")) == set(paths[2:])


@pytest.mark.slow
def test_damaged_kernels_break_no_compilation(folder, tmp_path):
    tuned_tiny.compiled_into(tmp_path, CompileOptions())
    kept = list(folder.rglob("*.o"))
    assert kept
    for path in kept:
        path.write_bytes(b"damaged")
    report = tuned_tiny.compiled_into(tmp_path, CompileOptions())
    assert [each.what for each in report.left_out] == [KEPT]
    assert report.replaced == []
    assert report.allowances <= 1
