"""The tuning journal: whole lines, and nothing else, survive kills and full disks."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest

from fewtune.errors import JournalError, MachineError
from fewtune.storage.journal import Journal

HEADER = {"machine": "0123456789ab", "target": "llvm", "search": {"seed": 0}}
EVENTS = [{"kind": "start", "task": "conv"}, {"kind": "batch", "task": "conv", "trials": [1.5]}]


def written(path: Path, events: list[dict]) -> bytes:
    """A journal of these events, closed; gives the file's bytes."""
    journal = Journal(path, HEADER)
    for event in events:
        journal.append(event)
    journal.close()
    return path.read_bytes()


def reopened(path: Path, header: dict | None = None) -> list[dict]:
    journal = Journal(path, header or HEADER)
    journal.close()
    return journal.events


def test_events_are_found_again_and_others_follow_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    written(path, EVENTS)
    assert reopened(path) == EVENTS
    written(path, [{"kind": "finish", "note": "a\nline, ü"}])
    assert reopened(path) == [*EVENTS, {"kind": "finish", "note": "a\nline, ü"}]


def test_an_event_is_on_disk_before_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEADER)
    journal.append(EVENTS[0])
    assert reopened(path) == EVENTS[:1]
    journal.close()


@pytest.mark.parametrize("kept", [1, 8, 9, 20, -1])
def test_a_torn_last_line_is_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, EVENTS[:1])
    line = written(path, EVENTS[1:])[len(whole) :]
    path.write_bytes(whole + line[:kept])
    assert reopened(path) == EVENTS[:1]
    assert path.read_bytes() == whole
    written(path, EVENTS[1:])
    assert reopened(path) == EVENTS


def test_a_spoilt_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    whole = written(path, EVENTS[:1])
    content = bytearray(written(path, EVENTS[1:]))
    content[-10:-1] = bytes(9)
    path.write_bytes(content)
    assert reopened(path) == EVENTS[:1]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_a_torn_header_begins_the_journal_anew(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "journal.jsonl"
    header = written(path, [])
    path.write_bytes(header[:kept])
    written(path, EVENTS)
    assert reopened(path) == EVENTS
    assert path.read_bytes().startswith(header)


@pytest.mark.parametrize("line", [1, 2])
def test_a_damaged_line_before_the_last_is_refused_and_kept(tmp_path: Path, line: int) -> None:
    path = tmp_path / "journal.jsonl"
    lines = written(path, EVENTS).splitlines(keepends=True)
    spoilt = lines[line - 1]
    lines[line - 1] = spoilt[:15] + b"#" + spoilt[16:]
    content = b"".join(lines)
    path.write_bytes(content)
    with pytest.raises(JournalError, match=f"line {line} is damaged") as refused:
        Journal(path, HEADER)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("other", "key", "found", "expected"),
    [
        ({**HEADER, "target": "cuda"}, "target", "'llvm'", "'cuda'"),
        ({**HEADER, "search": {"seed": 1}}, "search", "{'seed': 0}", "{'seed': 1}"),
        ({"machine": HEADER["machine"], "target": "llvm"}, "search", "{'seed': 0}", "None"),
    ],
)
def test_a_journal_of_other_work_is_refused(
    tmp_path: Path, other: dict, key: str, found: str, expected: str
) -> None:
    path = tmp_path / "journal.jsonl"
    content = written(path, EVENTS)
    with pytest.raises(JournalError) as refused:
        Journal(path, other)
    assert f"was written for {key} {found}, this run has {expected}" in str(refused.value)
    assert path.read_bytes() == content


def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEADER)
    journal.append(EVENTS[0])
    before = path.read_bytes()
    real_write = os.write
    calls = []

    def write_a_part_then_fail(descriptor: int, content: bytes) -> int:
        calls.append(len(content))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, content[:10])

    with monkeypatch.context() as patch:
        patch.setattr("fewtune.storage.journal.os.write", write_a_part_then_fail)
        with pytest.raises(MachineError, match="cannot write .No space left on device.*resume"):
            journal.append(EVENTS[1])
    assert len(calls) == 2
    assert path.read_bytes() == before
    journal.append(EVENTS[1])
    journal.close()
    assert reopened(path) == EVENTS


@pytest.mark.parametrize("event", ["3", "[]", "null", '{"task":"a"}', '{"kind":7}'])
def test_an_event_of_the_wrong_type_is_damage(tmp_path: Path, event: str) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, {})
    journal.close()
    lines = [f"{zlib.crc32(event.encode()):08x} {event}\n"] * 2
    path.write_text(path.read_text() + "".join(lines))
    with pytest.raises(JournalError, match="line 2 is damaged"):
        Journal(path, {})


def test_a_folder_in_a_journals_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is no file"):
        Journal(tmp_path, {})
