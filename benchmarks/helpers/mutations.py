"""Seeded mutations of valid banks, journals, predictors and libraries, and their readers.

Half of them change bytes anywhere. The others change values and keep what would give them away:
checksums, digests and the file's form. What nobody would damage by chance, strangers can make.
"""

from __future__ import annotations

import base64
import io
import json
import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.bank.exchange import export_bank, import_bank
from fewtune.deploy.note import require_runnable
from fewtune.predictor import digest, files_of, shipped
from fewtune.predictor.pretrained import Pretrained
from fewtune.storage.journal import Journal

_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "v99"),
    *([], {}, [[[[1]]]], "é\ud83d", "\0", "[" * 200_000, "../../etc/passwd", "\x1b[31m"),
)


@dataclass(frozen=True)
class Mutation:
    """One mutated file, and what reads it as users do."""

    kind: str
    what: str
    content: bytes
    read: Callable[[Path], object]


def mutated_bytes(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """A file with bytes of it changed, and a word for that."""
    place, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    changed = bytearray(content)
    match chance.choice(("flip", "flip", "cut", "drop", "twice", "noise", "brackets", "utf-16")):
        case "flip":
            for _ in range(chance.choice((1, 3, 30))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            return "bits flipped", bytes(changed)
        case "cut":
            return f"cut off after {place} bytes", content[:place]
        case "drop":
            return f"bytes {place} to {end} left out", content[:place] + content[end:]
        case "twice":
            return f"bytes {place} to {end} twice", content[:end] + content[place:]
        case "noise":
            noise = chance.randbytes(min(end - place, 1000))
            return f"noise at {place}", content[:place] + noise + content[place + len(noise) :]
        case "brackets":
            return f"brackets at {place}", content[:place] + b"[" * 200_000 + content[place:]
    return "as UTF-16", content[:4096].decode("latin-1").encode("utf-16") + content[4096:]


def mutated_value(value: Any, chance: random.Random) -> tuple[str, Any]:
    """JSON with one value, anywhere in it, replaced, left out, or taken from elsewhere in it."""
    value = json.loads(json.dumps(value))
    places = [place for place in _places(value) if place[1]]
    if not places:
        return "another value", chance.choice(_VALUES)
    parent, path = chance.choice(places)
    key, where = path[-1], ".".join(map(str, path))
    if chance.random() < 0.2:
        del parent[key]
        return f"{where} left out"[-120:], value
    if chance.random() < 0.3:
        other, other_path = chance.choice(places)
        parent[key] = json.loads(json.dumps(other[other_path[-1]]))
        return f"{where} as another value"[-120:], value
    parent[key] = chance.choice(_VALUES)
    return f"{where}: {parent[key]!r:.40}"[-120:], value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Every place in JSON: what holds it, and its path."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)]
    for key, inner in items:
        yield value, (*path, key)
        yield from _places(inner, (*path, key))


def _banks(log: Path, fingerprint: Fingerprint, chance: random.Random) -> Iterator[Mutation]:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "valid.bank"
        export_bank(log, file, fingerprint, licence="CC0-1.0")
        content = file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}

    def read(path: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=path.parent))
        try:
            import_bank(path, fingerprint, folder)
        finally:
            shutil.rmtree(folder)

    manifest = json.loads(members["manifest.json"])
    while True:
        if chance.random() < 0.3:
            what, changed = mutated_bytes(content, chance)
            yield Mutation("banks, mutated", what, changed, read)
            continue
        name = chance.choice(sorted(members))
        lines = members[name].splitlines() if name.startswith("database") else [members[name]]
        number = chance.randrange(len(lines))
        what, lines[number] = _mutated_line(name, lines[number], chance)
        manifest["holds_for"]["sha256"] = ""
        held = {**members, "manifest.json": json.dumps(manifest).encode()}
        held[name] = b"\n".join(lines) + b"\n"
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, inner in held.items():
                archive.writestr(member, inner)
        yield Mutation("banks, mutated", f"{name}: {what}", stream.getvalue(), read)


def _mutated_line(name: str, line: bytes, chance: random.Random) -> tuple[str, bytes]:
    """A line of JSON with a value replaced; of a workload, often one of its module's."""
    value = json.loads(line)
    if name == "database_workload.json" and chance.random() < 0.8:
        what, graph = mutated_value(json.loads(base64.b64decode(value[1])[8:]), chance)
        text = json.dumps(graph).encode()
        value[1] = base64.b64encode(struct.pack("<Q", len(text)) + text).decode()
        return f"module: {what}", json.dumps(value).encode()
    what, value = mutated_value(value, chance)
    return what, json.dumps(value).encode()


def _journals(journal: Path, chance: random.Random) -> Iterator[Mutation]:
    content = journal.read_bytes()
    header = json.loads(content.partition(b"\n")[0].partition(b" ")[2])
    expected = {key: value for key, value in header.items() if key not in ("kind", "format")}

    def read(path: Path) -> None:
        Journal(path, expected).close()

    while True:
        what, changed = mutated_bytes(content, chance)
        yield Mutation("journals, mutated", what, changed, read)


def _predictors(chance: random.Random) -> Iterator[Mutation]:
    trees, conditions = (file.read_bytes() for file in files_of(shipped()[0]))
    known = json.loads(conditions)

    def reader(described: Any) -> Callable[[Path], object]:
        def read(path: Path) -> None:
            given = described
            if isinstance(given, dict):
                given = {**given, "trees": digest(path.read_bytes())}
            path.with_suffix(".json").write_text(json.dumps(given))
            Pretrained.read(path.with_suffix(""))

        return read

    while True:
        if chance.random() < 0.7:
            what, changed = mutated_bytes(trees, chance)
            yield Mutation("predictors, mutated", f"trees: {what}", changed, reader(known))
        else:
            what, described = mutated_value(known, chance)
            yield Mutation("predictors, mutated", what, trees, reader(described))


def _libraries(library: Path, chance: random.Random) -> Iterator[Mutation]:
    content = library.read_bytes()
    while True:
        what, changed = mutated_bytes(content, chance)
        yield Mutation("libraries, mutated", what, changed, require_runnable)


# What files of a kind are called, for readers that look at the ending.
NAMES = {
    "banks, mutated": "mutated.bank",
    "journals, mutated": "mutated.jsonl",
    "predictors, mutated": "mutated.ubj",
    "libraries, mutated": "mutated.so",
}


def mutations(
    log: Path, journal: Path, library: Path, fingerprint: Fingerprint, chance: random.Random
) -> list[Iterator[Mutation]]:
    """An endless row of mutations for each kind of file."""
    return [
        _banks(log, fingerprint, chance),
        _journals(journal, chance),
        _predictors(chance),
        _libraries(library, chance),
    ]
