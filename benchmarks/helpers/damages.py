"""Ways to damage what commands and stages read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.helpers.tiny_checkout import MODEL
from fewtune.deploy.note import require_runnable
from fewtune.predictor import files_of
from fewtune.predictor.pretrained import Pretrained

OUT = f"out/{MODEL}"
STRATEGY = "selective"
WRONG_VALUES = ("-1", "0", "abc", "[]", "{}", "null", "1e400", "nan", "true", "- x: [")
NAMES = (
    *("x" * 300, "x" * 101, " ", "..", ".", ".hidden", "../outside", "a/b", "Upper", "bank"),
    *("fingerprint", "name\nwith a line", "ünicode", "a b", "$(id)", "*"),
)


@dataclass(frozen=True)
class Case:
    """One damaged input.

    Attributes
    ----------
    kind, what : str
        What is damaged, and how.
    command : tuple of str, or callable
        Arguments of Python at the checkout; or what a fork of this process does.
    codes : tuple of int
        The documented exit codes; 0 where the damage may mean nothing.
    damage : callable
        Does it.
    """

    kind: str
    what: str
    command: tuple[str, ...] | Callable[[], object]
    codes: tuple[int, ...]
    damage: Callable[[], object]


# Each is refused, and leaves every file as it was.
OPTIONS = (
    *("tune=[]", "tune", "=", "nosuch=1", "tune.nosuch=1", "tune.trials_per_task=-1"),
    *("tune.trials_per_task=", "tune.trials_per_task=abc", "tune.trials_per_task=1e400"),
    *("tune.start_from=../../../../etc", "tune.strategy=none", "tune.budget_s=nan"),
    *("fingerprint.threads=99999", "fingerprint.threads=0", "fingerprint.target=nonsense"),
    *('fingerprint.target={"kind":"llvm","mcpu":"nonsense"}', 'fingerprint.target={"kind":'),
    *("share_schedules.finals=x", "benchmark.rounds=0", "tune.predictor=predictors/absent"),
)


def damages(file: Path, chance: random.Random) -> Iterator[tuple[str, Callable[[], None]]]:
    """Ways to damage a file, with a word for each."""
    content = file.read_bytes()

    def write(changed: bytes) -> Callable[[], None]:
        def do() -> None:
            file.write_bytes(changed)

        return do

    cut = chance.randrange(1, max(2, len(content)))
    yield f"cut off after {cut} bytes", write(content[:cut])
    yield "emptied", write(b"")
    place = chance.randrange(len(content))
    flipped = bytes([content[place] ^ 0xFF])
    yield f"byte {place} inverted", write(content[:place] + flipped + content[place + 1 :])
    yield "a NUL byte put in", write(content[:place] + b"\0" + content[place:])
    yield "one line: {}", write(b"{}\n")
    yield "one line: []", write(b"[]\n")
    yield "nested 9000 deep", write(b"[" * 9000 + b"]" * 9000)
    yield "random bytes", write(chance.randbytes(300))
    lines = content.splitlines(keepends=True)
    chance.shuffle(lines)
    yield "lines shuffled", write(b"".join(lines))
    yield "said twice", write(content + content)

    def folder() -> None:
        file.unlink()
        file.mkdir()

    yield "a folder in its place", folder
    yield "missing", file.unlink


def wrong_values(file: Path, chance: random.Random, count: int) -> Iterator[Any]:
    """Values of other types in some of a YAML file's lines."""
    text = file.read_text()
    lines = text.splitlines()
    places = [n for n, line in enumerate(lines) if ":" in line and not line.startswith("#")]
    for _ in range(count):
        place, value = chance.choice(places), chance.choice(WRONG_VALUES)
        key = lines[place].split(":")[0]
        changed = [*lines[:place], f"{key}: {value}", *lines[place + 1 :]]

        def do(changed: list[str] = changed) -> None:
            file.write_text("\n".join(changed) + "\n")

        yield f"{key.strip()}: {value}", do


_COMMAND = ("-m", "fewtune.pipelines.cli")
_ONE = ("--model", MODEL)
_BOTH = (*_ONE, "--strategy", STRATEGY)


def _stage(name: str, *options: str) -> tuple[str, ...]:
    return ("-m", f"fewtune.stages.{name}", *options)


def cases(root: Path, chance: random.Random) -> Iterator[Case]:
    """Every case."""
    yield from _settings(root, chance)
    yield from _written(root, chance)
    yield from _exchanged(root, chance)


def _settings(root: Path, chance: random.Random) -> Iterator[Case]:
    """Parameters, names and registrations."""
    parameters = root / "params.yaml"
    for what, do in [*damages(parameters, chance), *wrong_values(parameters, chance, 40)]:
        yield Case("params", what, _stage("fingerprint"), (0, 2), do)
    for name in NAMES:
        given = (*_COMMAND, "add", "three.onnx", "--no-check", f"--name={name}")
        yield Case("names", repr(name[:30]), given, (2,), lambda: None)
    registration = root / "models" / MODEL / "model.yaml"
    for what, do in [*damages(registration, chance), *wrong_values(registration, chance, 3)]:
        yield Case("registrations", what, (*_COMMAND, "check", MODEL), (0, 2), do)


def _written(root: Path, chance: random.Random) -> Iterator[Case]:
    """What stages write: journals, logs and artifacts."""
    for journal in sorted((root / ".fewtune" / "journals").rglob("*.jsonl")):
        for what, do in damages(journal, chance):
            yield Case("journals", what, _stage("tune", *_BOTH), (0, 5), do)
    log = root / OUT / STRATEGY / "share"
    for name in ("log.json", "database_workload.json", "database_tuning_record.json"):
        for what, do in damages(log / name, chance):
            merged = (*_COMMAND, "log", str(log), "--output", str(root.with_name("merged")))
            yield Case("logs and databases", f"{name}: {what}", merged, (0, 2, 5), do)
    for what, do in damages(log / "database_tuning_record.json", chance):
        yield Case("databases, compiled", what, _stage("compile", *_BOTH), (0, 2, 5), do)
    for name in ("lowered.json", "weights.npz"):
        for what, do in damages(root / OUT / "import" / name, chance):
            yield Case("artifacts", f"{name}: {what}", _stage("extract_tasks", *_ONE), (0, 2), do)
    for what, do in damages(root / OUT / STRATEGY / "select" / "selection.json", chance):
        yield Case("artifacts", f"selection.json: {what}", _stage("compile", *_BOTH), (0, 2), do)


def _exchanged(root: Path, chance: random.Random) -> Iterator[Case]:
    """What comes from elsewhere: inputs, options, banks, predictors and libraries."""
    samples = root / "samples.npz"
    for what, do in damages(samples, chance):
        given = (*_COMMAND, "add", "three.onnx", "--no-check", "--name=refused")
        given += ("--inputs", "samples.npz")
        yield Case("archives", what, given, (0, 2), do)
    for option in OPTIONS:
        ran = (*_COMMAND, "run", MODEL, "--set", option)
        yield Case("options", option, ran, (2, 3), lambda: None)
    bank = root / "valid.bank"
    for what, do in damages(bank, chance):
        yield Case("banks", what, (*_COMMAND, "bank", "import", "valid.bank"), (0, 2), do)
    own = root / "predictors" / "own"
    for file in files_of(own):
        for what, do in damages(file, chance):
            named = f"{file.name}: {what}"
            yield Case("predictors", named, lambda: Pretrained.read(own), (0, 2), do)
    library = root / OUT / STRATEGY / "compile" / "model.so"
    for what, do in damages(library, chance):
        yield Case("libraries", what, lambda: require_runnable(library), (0, 2, 3), do)
