"""Kill processes of runs at random moments; say whether anything was lost, repeated or left behind.

    python benchmarks/kills.py [--kills 60] [--of run api fleet] [--services 12] [--seed 0]
        [--output results/kills.json]

Each kill begins a run of a small network anew, by the command, by `fewtune.tune`, or by that on a
fleet of two machines here. It waits a random part of what such a run takes, or of what its tuning
or sharing does, and sends SIGKILL, SIGTERM or SIGINT to a random process of it: the command, the
API's process, the warm process, DVC, a stage, a fleet's machine, a process that tunes or one that
builds and measures. Afterwards the same runs to its end. Then

- the run has gone on with every journal, and no trial in it was measured twice: nothing is lost,
  nothing repeated;
- no descendant of either run is alive, and no file, folder, journal or socket under way lies
  anywhere, the folder for temporary files among the places.

With ``--services`` processes of `fewtune ui`, `serve` and `watch` and of `dvc repro` are killed as
well: ten seconds later no descendant, listener or temporary file of theirs may be left.

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
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers import tiny_checkout
from benchmarks.helpers.tiny_checkout import MODEL
from fewtune.errors import INTERRUPTED
from tests.ports import free_port


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
    """The trials of a journal's rounds by task and trace; a torn or foreign line holds none."""
    found = []
    for line in content.split(b"\n"):
        try:
            event = json.loads(line.partition(b" ")[2])
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("kind") == "round":
            for task, trials in event["by_task"].items():
                traces = (json.dumps(trial["trace"]).encode() for trial in trials)
                found += [f"{task} {zlib.crc32(trace):08x}" for trace in traces]
    return found


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# A command that is interrupted or ended tells so by its exit code within this time.
_END_S = 30.0
_STAGE_S = 5.0
# Nothing is left of a command that was killed, so long after it.
_LEFT_S = 10.0
SERVICES = ("ui", "serve", "watch", "repro")
_TRACKERS = re.compile(
    r"Traceback \(most recent call last\):\n.*resource_tracker\.py.*\n.*\nKeyError: .*\n"
)
_BESIDE = re.compile(r"\..+\.[a-z0-9_]{8}")
_PR_SET_CHILD_SUBREAPER = 36
# What is begun, and the device that the API measures on.
RUN = "run"
_DEVICES = {"api": "here", "fleet": "local:2"}
KINDS = [RUN, *_DEVICES]
_TUNES = f"""
import sys
try:
    import fewtune
    options = {{"benchmark": {{"rounds": 3}}, "share_schedules": {{"trials_per_task": 2}}}}
    fewtune.tune("three.onnx", trials=4, out="out/{MODEL}", device=sys.argv[1], options=options)
except KeyboardInterrupt:
    sys.exit({INTERRUPTED})
except fewtune.errors.FewtuneError as fault:
    sys.exit(f"fewtune: {{fault}}")
"""
_FORKED = ("warm process", "what attends a fork", "DVC, stage, tuning process or worker")


def kind_of(process: psutil.Process, command: int) -> str:
    """What a process of a run is: what the warm process forks, by how far it is from that."""
    if process.pid == command:
        return "command"
    words = " ".join(process.cmdline())
    if "warm_python" in words:
        return "client of the warm process"
    if "multiprocessing" in words or "distributed" in words:
        return "fleet's machine"
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
    found += [str(path) for path in temporary.iterdir() if path.suffix != ".lock"]
    found += [str(path) for path in journals_of(root)]
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


def begin(root: Path, what: str = RUN, command: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a run, by the command or by the API on one of its devices, or another command."""
    tunes = (
        ["-m", "fewtune.pipelines.cli", "run", MODEL]
        if what == RUN
        else ["-c", _TUNES, _DEVICES[what]]
    )
    with (root / "run.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, *(command or tunes)],
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


def _is_in(root: Path, what: str, stage: str) -> bool:
    """Whether a run has come to a stage; the API's prints none, but writes a journal."""
    if what == RUN:
        return f"{stage}@{MODEL}" in _log(root)
    return any(stage.startswith(path.parent.name) for path in journals_of(root))


def one_kill(
    root: Path, number: int, chance: random.Random, run_s: float, what: str = RUN
) -> dict[str, Any]:
    """Kill one process of a new run, run again to the end, and look at what came of it."""
    reset(root)
    sent = chance.choice(SIGNALS)
    # A run measures for a few seconds: two of three kills are aimed at those.
    stage = chance.choice((None, "tune", "share_schedules"))
    wait_s, pick = chance.uniform(0.2, _STAGE_S if stage else run_s), chance.random()
    began = time.monotonic()
    process = begin(root, what)
    while stage and process.poll() is None and not _is_in(root, what, stage):
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    wait_s = time.monotonic() - began
    alive = descendants()
    row: dict[str, Any] = {"kill": number, "of": what, "signal": sent.name}
    row["after_s"] = round(wait_s, 1)
    row["in"] = re.findall(rf"(\w+)@{MODEL}[-\w]*: >", _log(root))[-1:]
    if not alive:
        code = process.wait()
        faults = [f"the run ended with {code} by itself: {_log(root)[-300:]}"] if code else []
        return {**row, "process": "none: the run had ended", "code": code, "faults": faults}
    kind, victim = _victim(alive, process.pid, pick, chance)
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
    again = begin(root, what)
    row["again"] = again.wait(400)
    text = _log(root)
    if again.returncode:
        faults.append(f"the next run ended with {again.returncode}: {text[-300:]}")
    faults += _tracebacks(text, "the next run")
    faults += journals.faults()
    time.sleep(1.5)
    faults += [f"left behind: {what}" for what in left_behind(root)]
    return {**row, "faults": faults}


def _victim(
    alive: list[psutil.Process], command: int, pick: float, chance: random.Random
) -> tuple[str, psutil.Process]:
    """A kind first, then one of it: there are more workers than anything else."""
    kinds: dict[str, list[psutil.Process]] = {}
    for each in alive:
        try:
            kinds.setdefault(kind_of(each, command), []).append(each)
        except psutil.Error:
            continue
    kind = sorted(kinds)[int(pick * len(kinds))]
    return kind, chance.choice(sorted(kinds[kind], key=lambda each: each.pid))


def one_service_kill(root: Path, number: int, chance: random.Random) -> dict[str, Any]:
    """Kill one process of a command other than a run, and look at what is left of it."""
    kind, sent = SERVICES[number % len(SERVICES)], chance.choice(SIGNALS)
    port = free_port()
    serves = kind in ("ui", "serve")
    command = {
        "repro": ("-m", "dvc", "repro", "--force", f"select_tasks@{MODEL}-selective"),
        "watch": ("-m", "fewtune.pipelines.cli", "watch", "--fleet"),
    }.get(kind, ("-m", "fewtune.pipelines.cli", kind, "--port", str(port)))
    began = time.monotonic()
    process = begin(root, RUN, command)
    while serves and process.poll() is None and not _listens(port):
        time.sleep(0.1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(chance.uniform(0.2, _STAGE_S))
    row: dict[str, Any] = {"kill": number, "command": kind, "signal": sent.name}
    row["after_s"] = round(time.monotonic() - began, 1)
    victim = chance.choice(descendants() or [psutil.Process()])
    if victim.pid == os.getpid():
        return {**row, "process": "none: it had ended", "faults": []}
    row["process"] = f"{kind}: {'command' if victim.pid == process.pid else 'child'}"
    with contextlib.suppress(psutil.Error):
        victim.send_signal(sent)
    faults = []
    try:
        row["code"] = process.wait(_END_S)
    except subprocess.TimeoutExpired:
        if victim.pid == process.pid:
            faults.append(f"the command had not ended {_END_S:g} s after {sent.name}")
        process.send_signal(signal.SIGTERM)
        row["code"] = process.wait(_END_S)
    faults += _tracebacks(_log(root), "the killed command")
    deadline = time.monotonic() + _LEFT_S
    while (left := left_behind(root)) or _listens(port):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    faults += [f"left behind: {what}" for what in left]
    if _listens(port):
        faults.append(f"port {port} is still listened on")
    return {**row, "faults": faults}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _tracebacks(text: str, where: str) -> list[str]:
    """A run's first traceback, if it printed one, and the lines around it."""
    # Python's tracker of semaphores says so of those that a killed one before it knew.
    text = _TRACKERS.sub("", text)
    at = text.find("Traceback")
    return [f"a traceback in {where}: {text[max(0, at - 600) : at + 6000]}"] if at >= 0 else []


def main() -> int:
    """Kill, and tell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--of", nargs="+", choices=KINDS, default=KINDS, help="runs, in turns")
    parser.add_argument("--services", type=int, default=0, help="kills of other commands")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--checkout", type=Path, help="one that `tiny_checkout` made before")
    parser.add_argument("--run-s", type=float, help="what a run takes, instead of measuring it")
    options = parser.parse_args()
    adopt_orphans()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        root = options.checkout or tiny_checkout.make(Path(scratch) / "checkout")
        run_s = {what: options.run_s or _whole_run_s(root, what) for what in options.of}
        chance = random.Random(options.seed)
        for number in range(options.kills + options.services):
            if number < options.kills:
                what = options.of[number % len(options.of)]
                rows.append(one_kill(root, number, chance, run_s[what], what))
            else:
                rows.append(one_service_kill(root, number, chance))
            print(json.dumps(rows[-1]), flush=True)
            if options.output:
                options.output.write_text(summary(rows, run_s) + "\n")
    print(summary(rows, run_s))
    return 1 if any(row["faults"] for row in rows) else 0


def _whole_run_s(root: Path, what: str) -> float:
    """What a run takes that nobody kills."""
    reset(root)
    began = time.monotonic()
    if begin(root, what).wait(400):
        raise SystemExit((root / "run.log").read_text())
    return time.monotonic() - began


def summary(rows: list[dict[str, Any]], run_s: dict[str, float]) -> str:
    """All kills as JSON, with counts."""
    return json.dumps(
        {
            "kills": len(rows),
            "with_faults": sum(bool(row["faults"]) for row in rows),
            "run_s": {what: round(whole_s, 1) for what, whole_s in run_s.items()},
            "by_run": dict(Counter(row.get("of") or row["command"] for row in rows)),
            "by_process": dict(Counter(row["process"] for row in rows)),
            "trials_journalled": sum(row.get("journalled", 0) for row in rows),
            "by_signal": dict(Counter(row["signal"] for row in rows)),
            "rows": rows,
        }
    )


if __name__ == "__main__":
    sys.exit(main())
