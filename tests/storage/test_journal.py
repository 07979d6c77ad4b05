"""The tuning journal: whole lines, and nothing else, survive kills and full disks."""

import errno
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from fewtune.errors import JournalError, MachineError
from fewtune.storage.journal import Journal

HEADER = {"machine": "0123456789ab", "target": "llvm", "search": {"seed": 0}}
TRACE = [
    [["GetSBlock", [], ["conv", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1"]]],
    [],
]
BATCH: dict[str, Any] = {
    "kind": "batch",
    "task": "conv",
    "phases": {"run_s": 1.5},
    "trials": [{"trace": TRACE, "run_s": [1e-3, 2e-3], "checked": True}],
}
EVENTS: list[dict[str, Any]] = [{"kind": "start", "task": "conv"}, BATCH]


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


def test_events_are_found_again_and_others_follow_them(tmp_path):
    path = tmp_path / "new" / "folder" / "journal.jsonl"
    written(path, EVENTS)
    assert reopened(path) == EVENTS
    written(path, [{"kind": "phases", "note": "a\nline, ü"}])
    assert reopened(path) == [*EVENTS, {"kind": "phases", "note": "a\nline, ü"}]


@pytest.mark.parametrize("kept", [1, 8, 9, 20, -1])
def test_a_torn_last_line_is_cut_off(tmp_path, kept):
    path = tmp_path / "journal.jsonl"
    whole = written(path, EVENTS[:1])
    line = written(path, EVENTS[1:])[len(whole) :]
    path.write_bytes(whole + line[:kept])
    assert reopened(path) == EVENTS[:1]
    assert path.read_bytes() == whole
    written(path, EVENTS[1:])
    assert reopened(path) == EVENTS


def test_a_spoilt_last_line_is_cut_off(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = written(path, EVENTS[:1])
    content = bytearray(written(path, EVENTS[1:]))
    content[-10:-1] = bytes(9)
    path.write_bytes(content)
    assert reopened(path) == EVENTS[:1]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_a_torn_header_begins_the_journal_anew(tmp_path, kept):
    path = tmp_path / "journal.jsonl"
    header = written(path, [])
    path.write_bytes(header[:kept])
    written(path, EVENTS)
    assert reopened(path) == EVENTS
    assert path.read_bytes().startswith(header)


@pytest.mark.parametrize("line", [1, 2])
def test_a_damaged_line_before_the_last_is_refused_and_kept(tmp_path, line):
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
def test_a_journal_of_other_work_is_refused(tmp_path, other, key, found, expected):
    path = tmp_path / "journal.jsonl"
    content = written(path, EVENTS)
    with pytest.raises(JournalError) as refused:
        Journal(path, other)
    assert f"was written for {key} {found}, this run has {expected}" in str(refused.value)
    assert path.read_bytes() == content


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
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


def with_events(path: Path, *events: str) -> Path:
    """A journal of lines of right checksums."""
    Journal(path, {}).close()
    lines = [f"{zlib.crc32(event.encode()):08x} {event}\n" for event in events]
    path.write_text(path.read_text() + "".join(lines))
    return path


@pytest.mark.parametrize("event", ["3", "[]", "null", '{"task":"a"}', '{"kind":7}', "[" * 9000])
def test_what_is_no_event_is_damage(tmp_path, event):
    path = with_events(tmp_path / "journal.jsonl", event, event)
    with pytest.raises(JournalError, match="line 2 is damaged"):
        Journal(path, {})


def test_a_folder_in_a_journals_place_is_refused(tmp_path):
    with pytest.raises(JournalError, match="is no file"):
        Journal(tmp_path, {})
