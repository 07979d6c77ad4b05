"""What a killed DVC leaves is mended; what a living one holds stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.dvc_repo.dvc_leftovers import mend_rwlock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / ".dvc" / "tmp"
    folder.mkdir(parents=True)
    return folder / "rwlock"


@pytest.mark.parametrize("content", ["", '{"read": {', "null"])
def test_a_list_that_was_cut_off_is_removed(file: Path, content: str) -> None:
    file.write_text(content)
    mend_rwlock(file.parents[2])
    assert not file.exists()


def test_a_whole_one_and_none_stay_as_they_are(file: Path) -> None:
    mend_rwlock(file.parents[2])
    assert not file.exists()
    file.write_text("{}")
    mend_rwlock(file.parents[2])
    assert file.read_text() == "{}"
