"""Journals of a killed run: what is lost of them, what is measured twice."""

from __future__ import annotations

import json
import shutil
import zlib
from collections import Counter
from pathlib import Path


def journals_of(root: Path) -> list[Path]:
    """The journals of a checkout's runs, and of the API's calls, which keep theirs in ``out``."""
    folders = (root / ".fewtune", root / "out")
    return sorted(path for folder in folders for path in folder.rglob("*.jsonl"))


class Journals:
    """The journals of a killed run, held by links: a stage that ends well removes its own.

    Parameters
    ----------
    root : Path
        The checkout.
    held : Path
        A new folder of the same file system.
    """

    def __init__(self, root: Path, held: Path) -> None:
        shutil.rmtree(held, ignore_errors=True)
        held.mkdir()
        self._before: dict[Path, bytes] = {}
        for number, journal in enumerate(journals_of(root)):
            link = held / f"{number}.jsonl"
            link.hardlink_to(journal)
            content = link.read_bytes()
            # What was torn by the kill is no trial: it was never measured to its end.
            self._before[link] = content[: content.rfind(b"\n") + 1]

    @property
    def trials(self) -> int:
        """How many trials were journalled before the kill."""
        return sum(len(_trials(content)) for content in self._before.values())

    def faults(self) -> list[str]:
        """What of it is gone, or was measured once more, since."""
        found = []
        for link, before in self._before.items():
            after = link.read_bytes()
            if not after.startswith(before):
                found.append(f"a journal of {len(_trials(before))} trials was not gone on with")
            counts = Counter(_trials(after))
            found += [
                f"measured {count} times: {name}" for name, count in counts.items() if count > 1
            ]
        return found


def _trials(content: bytes) -> list[str]:
    """The trials of a journal's batches by task and trace; a torn or foreign line holds none."""
    found = []
    for line in content.split(b"\n"):
        try:
            event = json.loads(line.partition(b" ")[2])
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("kind") == "batch":
            for trial in event.get("trials") or []:
                digest = zlib.crc32(json.dumps(trial["trace"]).encode())
                found.append(f"{event.get('task')} {digest:08x}")
    return found
