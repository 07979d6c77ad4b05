"""References that one process computes are read by others; damaged ones are computed again."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from fewtune.process.temporary import SESSION_PREFIX
from fewtune.schedule_check import task_reference
from fewtune.schedule_check.task_reference import CachedReference, ReferenceCache
from tests.made.products import convolution
from tests.schedule_check.test_check import altered, checked

FOUND = CachedReference(
    {0: np.arange(6, dtype=np.float32).reshape(2, 3), 2: np.array([True, False])},
    {0: np.ones((2, 3), np.float32)},
    positive=True,
    power=-12,
)


def only_file(folder: Path) -> Path:
    (file,) = (folder / "references").iterdir()
    return file


def test_a_written_reference_is_read(tmp_path):
    ReferenceCache(tmp_path).write("a task", FOUND)
    read = ReferenceCache(tmp_path).read("a task")
    assert read is not None
    assert (read.positive, read.power) == (True, -12)
    assert sorted(read.outputs) == [0, 2] and list(read.moved) == [0]
    for place, array in FOUND.outputs.items():
        np.testing.assert_array_equal(read.outputs[place], array)
        assert read.outputs[place].dtype == array.dtype
    np.testing.assert_array_equal(read.moved[0], FOUND.moved[0])
    assert ReferenceCache(tmp_path).read("another") is None


@pytest.mark.parametrize("place", ["first", "header", "array", "short", "empty"])
def test_a_damaged_file_is_ignored(tmp_path, place):
    ReferenceCache(tmp_path).write("a task", FOUND)
    file = only_file(tmp_path)
    content = bytearray(file.read_bytes())
    if place in ("short", "empty"):
        del content[len(content) // 2 if place == "short" else 0 :]
    else:
        array = content.index(FOUND.outputs[0].tobytes())
        content[{"first": 3, "header": 40, "array": array + 5}[place]] ^= 0xFF
    file.write_bytes(content)
    assert ReferenceCache(tmp_path).read("a task") is None


def test_a_second_process_reads_the_reference_of_the_first(tmp_path, monkeypatch):
    session = tmp_path / f"{SESSION_PREFIX}one"
    session.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(session))
    task = convolution(65, 16, 16)
    assert checked(task, task, task).fault == ""

    with monkeypatch.context() as patch:
        patch.setattr(task_reference, "default_schedule", None)
        assert checked(task, task, task).fault == ""
        assert checked(task, task, altered(task, extent_less=True)).fault
    file = only_file(session)
    file.write_bytes(file.read_bytes()[:-1])
    assert checked(task, task, task).fault == ""
