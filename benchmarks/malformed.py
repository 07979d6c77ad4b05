"""Damage what commands, stages and the API read; say whether each ends in a sentence and a code.

    python benchmarks/malformed.py [--seed 0] [--mutations 60] [--only "params;names"] [--most 3]
        [--output results/malformed.json]

Parameters, names, options, registrations, models, journals, logs, databases, artifacts, archives,
banks, predictors and libraries of a small network are damaged by a seeded generator: cut off,
emptied, bytes changed, values of other types, folders in the place of files. Then valid banks,
journals, predictors and libraries are mutated, with checksums and digests that fit
(`benchmarks.helpers.mutations`). Nothing may end by a signal, with a traceback, or with a code that
is not documented for such an input, or go on for more than a minute; a refused `add` or option may
change nothing.

Prints a line a case, then one line of JSON. Exit code 1 if anything went wrong. On two quiet cores
all of it takes about 40 minutes; ``--most 3 --mutations 5`` takes 5.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import malformed_models
from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.damages import OUT, STRATEGY, Case, cases
from benchmarks.helpers.forked import Ended, in_fork, write_then
from benchmarks.helpers.mutations import NAMES, mutations
from benchmarks.helpers.tiny_checkout import MODEL
from fewtune.artifacts import Fingerprint
from fewtune.bank.exchange import export_bank
from fewtune.predictor import files_of, shipped
from fewtune.process.child_python import CHILD_PYTHON, child_python
from fewtune.process.warm import warm_process

_END_S = 60.0
# A tuning or compiling that damage does not stop goes on to its end.
_STAGE_S = 300.0
_CODES = (0, 2, 3, 5)


def run_case(root: Path, case: Case, kept: Path) -> dict[str, Any]:
    """Damage, run, judge, and put everything back."""
    case.damage()
    models = {path.name for path in (root / "models").iterdir()}
    parameters = (root / "params.yaml").is_file() and (root / "params.yaml").read_bytes()
    if callable(case.command):
        ended = in_fork(case.command, _END_S)
    else:
        ended = _command(root, case.command)
    faults = faults_of(ended, case.codes)
    left = {path.name for path in (root / "models").iterdir()} - models
    if ended.code and left:
        faults.append(f"left behind: models/{', '.join(sorted(left))}")
    if ended.code and parameters and (root / "params.yaml").read_bytes() != parameters:
        faults.append("params.yaml was changed")
    restore(root, kept)
    return row(case.kind, case.what, ended, faults)


def _command(root: Path, arguments: tuple[str, ...]) -> Ended:
    began, warm = time.monotonic(), os.environ.get(CHILD_PYTHON)
    try:
        done = subprocess.run(
            [child_python(), *arguments],
            cwd=root,
            env=tiny_checkout.environment(root, {CHILD_PYTHON: warm} if warm else {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STAGE_S if "stages." in arguments[1] else _END_S,
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, text = None, ""
    return Ended(code, text, time.monotonic() - began)


def faults_of(ended: Ended, codes: tuple[int, ...]) -> list[str]:
    """What is wrong with an end; codes are the documented ones."""
    if ended.code is None:
        return [f"no end in {_END_S:g} s"]
    faults = []
    if ended.code < 0:
        faults.append(f"ended by {signal.Signals(-ended.code).name}")
    elif ended.code not in codes:
        faults.append(f"exit code {ended.code}, not one of {codes}")
    if "Traceback (most recent call last)" in ended.text:
        faults.append(f"a traceback: {ended.text.strip().splitlines()[-1][:200]}")
    if ended.code and not faults and not _sentences(ended):
        faults.append(f"no sentence: {ended.text.strip()[-200:]}")
    return faults


def _sentences(ended: Ended) -> list[str]:
    return [line for line in ended.text.splitlines() if line.startswith("fewtune: ")]


def row(kind: str, what: str, ended: Ended, faults: list[str]) -> dict[str, Any]:
    """The result of one case."""
    said = (_sentences(ended) or [""])[-1][:300]
    head = {"kind": kind, "what": what, "code": ended.code, "faults": faults}
    return {**head, "said": said, "s": round(ended.seconds, 1)}


def mutated(root: Path, count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """So many mutations of each kind of file, read in forks of this process."""
    out = root / OUT / STRATEGY
    (journal,) = sorted((root / ".fewtune" / "journals").rglob("*.jsonl"))[:1]
    fingerprint = Fingerprint.read(root / "out" / "fingerprint")
    log, library = out / "share", out / "compile" / "model.so"
    for kind in mutations(log, journal, library, fingerprint, chance):
        for each in itertools.islice(kind, count):
            with tempfile.TemporaryDirectory(prefix="mutated-") as scratch:
                path = Path(scratch) / NAMES[each.kind]
                ended = in_fork(write_then(path, each.content, each.read), _END_S)
            yield row(each.kind, each.what, ended, faults_of(ended, _CODES))


def models() -> Iterator[dict[str, Any]]:
    """Every malformed model, checked in a fork of this process."""
    for case in malformed_models.cases():
        found = malformed_models.check_case(case)
        ended = Ended(found.code, f"fewtune: {found.said}", found.seconds)
        yield row("models", case.name, ended, [found.fault] if found.fault else [])


_KEPT = (
    *("params.yaml", "models", "out", ".fewtune", "samples.npz"),
    *("bank", "predictors", "valid.bank"),
)


def copy_kept(source: Path, to: Path) -> None:
    """Copy what is damaged, in place of what is there."""
    for name in _KEPT:
        place = to / name
        if place.is_dir():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place)
        else:
            shutil.copy2(source / name, place)


def restore(root: Path, kept: Path) -> None:
    """Put everything back."""
    shutil.rmtree(root.with_name("merged"), ignore_errors=True)
    copy_kept(kept, root)


def prepare(root: Path) -> None:
    """A checkout with a finished run, unless it is there, and the journal of a killed tuning."""
    if not root.exists():
        tiny_checkout.make(root)
        tiny_checkout.fewtune(root, "run", MODEL).check_returncode()
    np.savez(root / "samples.npz", image=np.ones((1, 16, 28, 28), "float32"))
    # Through DVC's links the cache itself would be damaged.
    subprocess.run(
        [sys.executable, "-m", "dvc", "unprotect", "out"],
        cwd=root,
        env=tiny_checkout.environment(root),
        capture_output=True,
    )
    journals = root / ".fewtune" / "journals"
    stage = subprocess.Popen(
        [sys.executable, "-m", "fewtune.stages.tune", "--model", MODEL, "--strategy", STRATEGY],
        cwd=root,
        env=tiny_checkout.environment(root),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while stage.poll() is None:
        if any(len(file.read_bytes().splitlines()) > 2 for file in journals.rglob("*.jsonl")):
            os.killpg(stage.pid, signal.SIGKILL)
            break
        time.sleep(0.01)
    stage.wait()
    fingerprint = Fingerprint.read(root / "out" / "fingerprint")
    log = root / OUT / STRATEGY / "share"
    export_bank(log, root / "valid.bank", fingerprint, licence="CC0-1.0")
    own = files_of(root / "predictors" / "own")
    for file, copy in zip(files_of(shipped()[0]), own, strict=True):
        shutil.copyfile(file, copy)


def main() -> int:
    """Damage, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="kinds, with semicolons between them")
    parser.add_argument("--most", type=int, help="so many of each kind, drawn by the seed")
    parser.add_argument("--mutations", type=int, default=60, help="of each kind of file")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root, kept = Path(scratch) / "checkout", Path(scratch) / "kept"
        prepare(root)
        kept.mkdir()
        copy_kept(root, kept)
        chance = random.Random(options.seed)
        chosen = list(cases(root, chance))
        if options.only:
            chosen = [case for case in chosen if case.kind in options.only.split(";")]
        if options.most:
            chance.shuffle(chosen)
            kinds = dict.fromkeys(case.kind for case in chosen)
            chosen = [
                case
                for kind in kinds
                for case in [each for each in chosen if each.kind == kind][: options.most]
            ]
        done = itertools.chain(
            (run_case(root, case, kept) for case in chosen),
            mutated(root, options.mutations, chance),
            [] if options.only or options.most else models(),
        )
        with warm_process([]):
            for each in done:
                rows.append(each)
                print(json.dumps(each), flush=True)
                if options.output:
                    options.output.write_text(summary(rows) + "\n")
    print(summary(rows))
    return 1 if any(row["faults"] for row in rows) else 0


def summary(rows: list[dict[str, Any]]) -> str:
    """All cases as JSON, with counts."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in kinds}
    faulty = sum(bool(row["faults"]) for row in rows)
    mutations = sum(count for kind, count in counts.items() if kind in NAMES)
    head = {"inputs": len(rows) - mutations, "mutations": mutations, "with_faults": faulty}
    return json.dumps({**head, "by_kind": counts, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
