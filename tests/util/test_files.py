"""Folders that are replaced whole, or stay as they were."""

import os
from pathlib import Path

import pytest

from fewtune.util import files
from fewtune.util.files import remove_left, whole_directory


def text_in(directory: Path) -> str:
    return (directory / "text").read_text()


def write(directory: Path, text: str) -> None:
    with whole_directory(directory) as beside:
        (beside / "text").write_text(text)


def test_a_folder_is_replaced_whole(tmp_path):
    for text in ("first", "second"):
        write(tmp_path / "out", text)
        assert text_in(tmp_path / "out") == text
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_block_that_fails_leaves_the_old_one(tmp_path):
    write(tmp_path / "out", "first")
    with pytest.raises(ZeroDivisionError), whole_directory(tmp_path / "out") as beside:
        (beside / "text").write_text("second")
        raise ZeroDivisionError
    assert text_in(tmp_path / "out") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_one_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    write(tmp_path / "out", "first")
    real, moved = os.replace, []

    def fail_once(source: Path, place: Path) -> None:
        moved.append(place)
        # The first moves the old one away, the second is the new one's.
        if len(moved) == 2:
            raise OSError("no more room")
        real(source, place)

    monkeypatch.setattr(files.os, "replace", fail_once)
    with pytest.raises(OSError, match="no more room"):
        write(tmp_path / "out", "second")
    assert text_in(tmp_path / "out") == "first"


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    target = tmp_path / "share"
    left = tmp_path / ".share.abcdefgh"
    other = tmp_path / ".shared.abcdefgh"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").touch()
        os.utime(folder, (0, 0))
    with whole_directory(target) as directory:
        os.utime(directory, (0, 0))
        assert not left.exists()
        # What is being written is locked.
        remove_left(tmp_path.iterdir())
        assert directory.exists()
        assert not other.exists()
        (directory / "whole").touch()
    assert [path.name for path in target.iterdir()] == ["whole"]
