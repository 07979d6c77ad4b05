"""Damage what commands and stages read; say whether each ends in a sentence and a documented code.

    python benchmarks/malformed.py [--seed 0] [--only "params;names"] [--most 3] [--output FILE]

Parameters, names, registrations, journals, logs, databases, artifacts and archives of a small
network are damaged by a seeded generator: cut off, emptied, bytes changed, values of other types,
folders in the place of files. Models are `benchmarks/malformed_models.py`'s. Nothing may end by a
signal, with a traceback, or with a code that is not documented for such an input; a refused `add`
may leave nothing.

Prints a line a case, then one line of JSON. Exit code 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.damages import STRATEGY, Case, cases
from benchmarks.helpers.tiny_checkout import MODEL

_END_S = 300


def run_case(root: Path, case: Case, kept: Path) -> dict[str, Any]:
    """Damage, run, judge, and put everything back."""
    case.damage()
    models = {path.name for path in (root / "models").iterdir()}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *case.command],
            cwd=root,
            env=tiny_checkout.environment(root),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_END_S,
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, text = None, ""
    faults = []
    if code is None:
        faults.append(f"no end in {_END_S} s")
    elif code < 0:
        faults.append(f"ended by {signal.Signals(-code).name}")
    elif code not in case.codes:
        faults.append(f"exit code {code}, not one of {case.codes}")
    if "Traceback (most recent call last)" in text:
        faults.append(f"a traceback: {text.strip().splitlines()[-1][:200]}")
    reasons = [line for line in text.splitlines() if line.startswith("fewtune: ")]
    if code and not reasons and not faults:
        faults.append(f"no sentence: {text.strip()[-200:]}")
    left = {path.name for path in (root / "models").iterdir()} - models
    if code and left:
        faults.append(f"left behind: models/{', '.join(sorted(left))}")
    restore(root, kept)
    row = {"kind": case.kind, "what": case.what, "code": code, "faults": faults}
    return {
        **row,
        "said": reasons[-1][:300] if reasons else "",
        "s": round(time.monotonic() - began, 1),
    }


_KEPT = ("params.yaml", "models", "out", ".fewtune", "samples.npz")


def keep(root: Path, kept: Path) -> None:
    """Copy what is damaged."""
    for name in _KEPT:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, kept / name)
        else:
            shutil.copy2(source, kept / name)


def restore(root: Path, kept: Path) -> None:
    """Put everything back."""
    shutil.rmtree(root.with_name("merged"), ignore_errors=True)
    for name in _KEPT:
        place = root / name
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        if (kept / name).is_dir():
            shutil.copytree(kept / name, place)
        else:
            shutil.copy2(kept / name, place)


def prepare(root: Path) -> None:
    """A checkout with a finished run, and the journal of a tuning that was killed."""
    tiny_checkout.make(root)
    np.savez(root / "samples.npz", image=np.ones((1, 16, 28, 28), "float32"))
    done = tiny_checkout.fewtune(root, "run", MODEL)
    if done.returncode:
        raise RuntimeError(done.stderr)
    # Through DVC's links the cache itself would be damaged.
    subprocess.run(
        [sys.executable, "-m", "dvc", "unprotect", "out"],
        cwd=root,
        env=tiny_checkout.environment(root),
        capture_output=True,
    )
    journals = root / ".fewtune" / "journals"
    stage = subprocess.Popen(
        [sys.executable, "-m", "stages.tune", "--model", MODEL, "--strategy", STRATEGY],
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


def main() -> int:
    """Damage, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="kinds, with semicolons between them")
    parser.add_argument("--most", type=int, help="so many of each kind, drawn by the seed")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root, kept = Path(scratch) / "checkout", Path(scratch) / "kept"
        prepare(root)
        kept.mkdir()
        keep(root, kept)
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
        for case in chosen:
            rows.append(run_case(root, case, kept))
            print(json.dumps(rows[-1]), flush=True)
            if options.output:
                options.output.write_text(summary(rows) + "\n")
    print(summary(rows))
    return 1 if any(row["faults"] for row in rows) else 0


def summary(rows: list[dict[str, Any]]) -> str:
    """All cases as JSON, with counts."""
    kinds = dict.fromkeys(row["kind"] for row in rows)
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in kinds}
    faulty = sum(bool(row["faults"]) for row in rows)
    head = {"inputs": len(rows), "with_faults": faulty, "by_kind": counts}
    return json.dumps({**head, "rows": rows})


if __name__ == "__main__":
    sys.exit(main())
