"""Libraries beside other work: ``python benchmarks/contention.py RESULT ... [--output results]``.

A RESULT is a folder that a run or `fewtune.tune` wrote, such as ``out/squeezenet``, or those below
``.fewtune/wild/project/out``. Each model runs alone, beside one busy process a core, and beside
four; by its library and by onnxruntime, each in a process of its own, in turns. Then as many
processes as there are cores, of one thread each, and one process of all threads answer calls. A
busy process has this one's priority, and is in its session: Linux shares a core by sessions first.
Nothing else may run meanwhile. Writes ``contention.json`` and ``contention.md``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import alone
from fewtune.deploy.note import read_note
from fewtune.errors import InputError, MachineError
from fewtune.stages.commit import commit
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number
from fewtune.verify.reference import Reference

PROJECT = Path(__file__).resolve().parents[1]
OURS, THEIRS = "", "onnxruntime_"
_CORES = len(os.sched_getaffinity(0))
# Busy processes by the condition's name.
CONDITIONS = {"alone": 0, "busy": _CORES, "four": 4}
STATISTICS = {"median": 50, "p90": 90, "p99": 99}
_WARM_CALLS, _LIMIT_S = 5, 120


def answer(runtime: str, file: str, feeds: str, threads: int, seconds: float) -> list[float]:
    """Milliseconds of each call, one after the other for so long; begins with a line of input."""
    inputs = dict(np.load(feeds))
    session: Any
    if runtime == OURS:
        import fewtune

        session = fewtune.InferenceSession(file, threads=threads)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for _ in range(_WARM_CALLS):
        session.run(None, inputs)
    print("ready", flush=True)
    sys.stdin.readline()
    taken_ms, end_s = [], time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        session.run(None, inputs)
        taken_ms.append(1000 * (time.perf_counter() - began_s))
    return taken_ms


@contextmanager
def started(command: list[str], count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes of a command, which end with the block."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    made = [subprocess.Popen(command, text=True, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    try:
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


def measured(count: int, *arguments: object) -> list[list[float]]:
    """What `answer` gives in so many processes at once."""
    command = [sys.executable, __file__, "--answer", *map(str, arguments)]
    with started(command, count) as made:
        for process in made:
            assert process.stdout
            if process.stdout.readline() != "ready\n":
                raise MachineError(f"{arguments[1]} does not run: the reason stands above")
        for process in made:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=_LIMIT_S)[0]) for process in made]


def row(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """One model in all conditions."""
    result = folder / "selective" if (folder / "selective" / "compile").is_dir() else folder
    files = {OURS: result / "compile" / "model.so", THEIRS: folder / "import" / "model.onnx"}
    for file in files.values():
        if not file.is_file():
            raise InputError(f"{file} is missing: give a folder that a run wrote, such as out/NAME")
    threads = read_note(files[OURS]).threads
    samples: dict[str, list[float]] = {}
    found: dict[str, Any] = {"model": folder.name, "threads": threads}
    with tempfile.TemporaryDirectory() as scratch:
        feeds = Path(scratch) / "feeds.npz"
        np.savez(feeds, allow_pickle=False, **Reference.read(folder / "import").feeds)
        for _ in range(rounds):
            for condition, busy in CONDITIONS.items():
                with started([sys.executable, "-c", "while True: pass"], busy):
                    for runtime, file in files.items():
                        taken = measured(1, runtime, file, feeds, threads, seconds)[0]
                        samples.setdefault(f"{runtime}{condition}", []).extend(taken)
        for processes, each in ((1, threads), (threads, 1)):
            for runtime, file in files.items():
                taken_ms = measured(processes, runtime, file, feeds, each, seconds)
                speed = sum(len(one) for one in taken_ms) / seconds
                found[f"{runtime}calls_s_{processes}x{each}"] = round(speed, 1)
    for name, taken in samples.items():
        for statistic, percent in STATISTICS.items():
            found[f"{name}_{statistic}_ms"] = round(float(np.percentile(taken, percent)), 4)
    return found


def page(rows: list[dict[str, Any]], conditions: str) -> str:
    """The tables, and how many models reach the marks."""
    names = [f"{name}_{statistic}_ms" for name in CONDITIONS for statistic in STATISTICS]
    lines, slower, longer = [], 0, 0
    for each in rows:
        for condition, busy in CONDITIONS.items():
            ours, theirs = (
                [each[f"{runtime}{name}"] for name in names if name.startswith(condition)]
                for runtime in (OURS, THEIRS)
            )
            slower, longer = slower + (ours[0] > theirs[0]), longer + (ours[2] > 1.2 * theirs[2])
            lines.append([each["model"], str(busy), *map(number, [*ours, *theirs])])
    speeds = [name for name in rows[0] if name.startswith("calls_s_")]
    headings = [f"{who}{name} ms" for who in ("", "onnxruntime ") for name in STATISTICS]
    calls = [f"{who}{name[8:]}" for name in speeds for who in ("", "onnxruntime ")]
    answered = [
        [each["model"], *(number(each[who + name]) for name in speeds for who in (OURS, THEIRS))]
        for each in rows
    ]
    latencies = Table(["model", "busy", *headings], lines).markdown()
    return f"""# Beside other work

By `python benchmarks/contention.py`: latencies of one call after the other, beside busy processes.
{conditions}

{latencies}
Of {len(lines)} lines, {slower} are slower than onnxruntime by the median; in {longer} the 99th
percentile is more than 1.2 times onnxruntime's.

## Calls a second

Processes x threads, nothing beside them.

{Table(["model", *calls], answered).markdown()}"""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT")
    parser.add_argument("--output", type=Path, default=PROJECT / "results")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of calls, each time")
    parser.add_argument("--answer", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        runtime, file, feeds, threads, seconds = asked.answer
        print(json.dumps(answer(runtime, file, feeds, int(threads), float(seconds))))
        return
    with alone("contention"):
        if not asked.results:
            raise InputError("name folders of results, such as .fewtune/wild/project/out/*")
        cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(": ")[1] for line in cpuinfo if line.startswith("model name")), "?")
        conditions = (
            f"{cpu}, {_CORES} cores, Linux {os.uname().release}, {asked.rounds} rounds of "
            f"{asked.seconds:g} s, commit {commit(PROJECT)}, {datetime.date.today()}."
        )
        rows: list[dict[str, Any]] = []
        for folder in asked.results:
            rows.append(row(folder, asked.rounds, asked.seconds))
            print(json.dumps(rows[-1]), flush=True)
            document = {"conditions": conditions, "models": rows}
            write_text(asked.output / "contention.json", canonical_json(document))
            write_text(asked.output / "contention.md", page(rows, conditions))


if __name__ == "__main__":
    main()
