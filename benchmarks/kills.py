"""Kill processes of runs at random moments; say whether anything was lost, repeated or left behind.

    python benchmarks/kills.py [--kills 50] [--seed 0] [--output results/kills.json]

Each kill begins a run of a small network anew, waits a random part of what such a run takes, or of
what its tuning or sharing does, and sends SIGKILL, SIGTERM or SIGINT to a random process of it: the
command, the warm process, DVC, a stage, a process that tunes or one that builds and measures.
Afterwards the same command runs to its end. Then

- the run has gone on with every journal, and no trial in it was measured twice: nothing is lost,
  nothing repeated;
- no descendant of either run is alive, and no file, folder, journal or socket under way lies
  anywhere, the folder for temporary files among the places.

Prints a line a kill, then one line of JSON. Exit code 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.killed_journals import Journals
from benchmarks.helpers.tiny_checkout import MODEL

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# A command that is interrupted or ended tells so by its exit code within this time.
_END_S = 30.0
_STAGE_S = 5.0
_BESIDE = re.compile(r"\..+\.[a-z0-9_]{8}")
_PR_SET_CHILD_SUBREAPER = 36
_FORKED = (
    "warm process",
    "DVC, stage or tuning process",
    "what forks workers",
    "build and measuring worker",
)


def kind_of(process: psutil.Process, command: int) -> str:
    """What a process of a run is: what the warm process forks, by how far it is from that."""
    if process.pid == command:
        return "command"
    words = " ".join(process.cmdline())
    if "warm_python" in words:
        return "client of the warm process"
    if "fewtune.process.warm_server" not in words:
        return Path(process.name()).name
    ancestors = [parent.pid for parent in process.parents()]
    depth = ancestors.index(command) if command in ancestors else len(_FORKED)
    return _FORKED[min(depth, len(_FORKED) - 1)]


def adopt_orphans() -> None:
    """Become the parent of whatever loses its own, so that no descendant is ever out of sight."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """Every live process that descends from this one, orphans too; the ended are reaped."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)
            else:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def left_behind(root: Path) -> list[str]:
    """Processes, files under way, temporary files and journals of a run that has ended."""
    found = [f"process {process.pid}: {_words(process)}" for process in descendants()]
    for folder in (root / "out", root / ".fewtune", root / "models", root / ".dvc"):
        found += [str(path) for path in folder.rglob(".*") if _BESIDE.fullmatch(path.name)]
        found += [str(path) for path in folder.rglob("*.tmp")]
    temporary = root.parent / f"{root.name}.beside" / "locks"
    kept = {".ses"}  # one of onnxruntime's, written over each time
    found += [
        str(path)
        for path in temporary.iterdir()
        if path.suffix != ".lock" and path.name not in kept
    ]
    found += [str(path) for path in (root / ".fewtune").rglob("*.jsonl")]
    return found


def _words(process: psutil.Process) -> str:
    """The command line of a process, as far as it can be read."""
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return "ended meanwhile"


def reset(root: Path) -> None:
    """Take back all results, caches and journals."""
    for name in ("out", ".fewtune", "mlruns", "mlartifacts"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("dvc.lock", "mlflow.db"):
        (root / name).unlink(missing_ok=True)
    for name in ("cache", "tmp"):
        shutil.rmtree(root / ".dvc" / name, ignore_errors=True)
    for path in (root.parent / f"{root.name}.beside" / "locks").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def begin(root: Path) -> subprocess.Popen[str]:
    """Start a run."""
    with (root / "run.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", "run", MODEL],
            cwd=root,
            env=tiny_checkout.environment(root, {"PYTHONFAULTHANDLER": "1"}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell that starts this in the background has it ignore interrupts.
            preexec_fn=_takes_interrupts,
        )


def _takes_interrupts() -> None:
    """Let a new process end at an interrupt, as one that a terminal starts does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _log(root: Path) -> str:
    """What the run has said so far."""
    return (root / "run.log").read_text(errors="replace")


def one_kill(root: Path, number: int, chance: random.Random, run_s: float) -> dict[str, Any]:
    """Kill one process of a new run, run again to the end, and look at what came of it."""
    reset(root)
    sent = chance.choice(SIGNALS)
    # A run measures for a few seconds: two of three kills are aimed at those.
    stage = chance.choice((None, "tune", "share_schedules"))
    wait_s, pick = chance.uniform(0.2, _STAGE_S if stage else run_s), chance.random()
    began = time.monotonic()
    process = begin(root)
    while stage and process.poll() is None and f"{stage}@{MODEL}" not in _log(root):
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    wait_s = time.monotonic() - began
    alive = descendants()
    row: dict[str, Any] = {"kill": number, "signal": sent.name, "after_s": round(wait_s, 1)}
    row["in"] = re.findall(rf"(\w+)@{MODEL}[-\w]*: >", _log(root))[-1:]
    if not alive:
        return {**row, "process": "none: the run had ended", "faults": []}
    # A kind first, then one of it: there are more workers than anything else.
    kinds: dict[str, list[psutil.Process]] = {}
    for each in alive:
        try:
            kinds.setdefault(kind_of(each, process.pid), []).append(each)
        except psutil.Error:
            continue
    kind = sorted(kinds)[int(pick * len(kinds))]
    victim = chance.choice(sorted(kinds[kind], key=lambda each: each.pid))
    try:
        victim.send_signal(sent)
    except psutil.Error:
        kind = f"{kind} (had ended)"
    row["process"] = kind
    faults = []
    try:
        code = process.wait(_END_S if kind == "command" else 400)
    except subprocess.TimeoutExpired:
        # It writes down where each thread is.
        process.send_signal(signal.SIGABRT)
        code = process.wait()
        where = _log(root)[-2000:]
        faults.append(f"the command had not ended {_END_S:g} s after {sent.name}: {where}")
    row["code"] = code
    text = _log(root)
    faults += _tracebacks(text, "the killed run")
    journals = Journals(root, root.with_name("held"))
    row["journalled"] = journals.trials
    again = begin(root)
    row["again"] = again.wait(400)
    text = _log(root)
    if again.returncode:
        faults.append(f"the next run ended with {again.returncode}: {text[-300:]}")
    faults += _tracebacks(text, "the next run")
    faults += journals.faults()
    time.sleep(1.5)
    faults += [f"left behind: {what}" for what in left_behind(root)]
    return {**row, "faults": faults}


def _tracebacks(text: str, where: str) -> list[str]:
    """A run's first traceback, if it printed one, and the lines around it."""
    at = text.find("Traceback")
    return [f"a traceback in {where}: {text[max(0, at - 600) : at + 6000]}"] if at >= 0 else []


def main() -> int:
    """Kill, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--checkout", type=Path, help="one that `tiny_checkout` made before")
    parser.add_argument("--run-s", type=float, help="what a run takes, instead of measuring it")
    options = parser.parse_args()
    adopt_orphans()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = options.checkout or tiny_checkout.make(Path(scratch) / "checkout")
        run_s = options.run_s or _whole_run_s(root)
        chance = random.Random(options.seed)
        for number in range(options.kills):
            rows.append(one_kill(root, number, chance, run_s))
            print(json.dumps(rows[-1]), flush=True)
            if options.output:
                options.output.write_text(summary(rows, run_s) + "\n")
    print(summary(rows, run_s))
    return 1 if any(row["faults"] for row in rows) else 0


def _whole_run_s(root: Path) -> float:
    """What a run takes that nobody kills."""
    began = time.monotonic()
    if begin(root).wait(400):
        raise SystemExit((root / "run.log").read_text())
    return time.monotonic() - began


def summary(rows: list[dict[str, Any]], run_s: float) -> str:
    """All kills as JSON, with counts."""
    return json.dumps(
        {
            "kills": len(rows),
            "with_faults": sum(bool(row["faults"]) for row in rows),
            "run_s": round(run_s, 1),
            "by_process": dict(Counter(row["process"] for row in rows)),
            "trials_journalled": sum(row.get("journalled", 0) for row in rows),
            "by_signal": dict(Counter(row["signal"] for row in rows)),
            "rows": rows,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
