"""What a fleet costs and brings: ``python benchmarks/fleet.py [--only scaling|loopback|board]``.

``scaling_4``, ``scaling_8``: throughput of four and eight devices over that of one, where a device
only sleeps, 50 ms a candidate: what the client and Dask add is all that can be lost.
``loopback_time_ratio``, ``loopback_latency_ratio``: a model tuned through one Dask worker of this
machine over the same without one: seconds of tuning, and the latency.
``board_best_ratio``: the best of eight random candidates a task, as two RPC servers of this machine
measure them, over the same eight in this process, one thread each: the fastest's seconds. Only
candidates that both measured count.
They take turns, and medians of the ratios stand; have the machine alone.

``results/fleet.json`` gets them; what a call leaves out stays, such as ``aarch64_max_error``, which
``make test-aarch64`` writes.
"""

from __future__ import annotations

import argparse
import json
import pickle
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import distributed

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fewtune
from benchmarks.zoo.registry import written
from fewtune.artifacts import Fingerprint, TaskInfo
from fewtune.fleet.device import Cluster, FleetRun, fleet_fingerprint
from fewtune.fleet.worker import RESOURCE, Answer, class_of
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.import_model import imported_model
from fewtune.model.source import add_model
from fewtune.options import ImportOptions, TuneOptions
from fewtune.progress.progress import Progress
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task, extract_tasks
from fewtune.tuning.job import measured
from fewtune.tuning.tune import TuneJob
from fewtune.util.files import canonical_json, write_text
from tests.rpc_boards import boards

OUT = Path("results/fleet.json")
SLEEP_S = 0.05
_TASKS, _TRIALS, _BATCH = 16, 16, 8
_ROUNDS, _BOARD_TASKS = 3, 6


# By session, the tasks of its next batches.
_LEFT: dict[str, list[str]] = {}


def asleep(key: str, whole: dict[str, Any] | None) -> Answer:
    """A device that takes 50 ms a candidate, whatever it is, and no time for anything else."""
    if whole is not None:
        names = [task.info.name for task in pickle.loads(whole["job"]).tasks]
        _LEFT[key] = names * (_TRIALS // _BATCH)
    name = _LEFT[key].pop()
    time.sleep(SLEEP_S * _BATCH)
    trials = [{"trace": [secrets.token_hex(8)], "run_s": [1e-3]} for _ in range(_BATCH)]
    phases = {"run_s": SLEEP_S * _BATCH}
    event = {"kind": "round", "round": "alone", "by_task": {name: trials}, "phases": phases}
    event |= {"donors": {name: [None] * _BATCH}, "finals": {}, "defaults": {}, "rest_s": 0.0}
    return Answer("batch" if _LEFT[key] else "done", [event])


def sleeping_task(name: str) -> Task:
    """A task that is never looked at."""
    info = TaskInfo(
        name=name,
        workload=name,
        weight=1,
        anchor="matmul",
        operator="matmul",
        shapes=[[1, 4]],
        dtype="float32",
        flops=1.0,
        bytes=1,
        share=1 / _TASKS,
    )
    return Task(info, tvm.IRModule({}))


def throughput(devices: int) -> float:
    """Candidates a second of so many devices that sleep."""
    workers = distributed.LocalCluster(
        n_workers=devices,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        resources={RESOURCE: 1},
        dashboard_address=None,
    )
    options = FingerprintOptions(device=workers.scheduler_address)
    own = fleet_fingerprint(options)
    tasks = [sleeping_task(f"task{place}") for place in range(_TASKS)]
    tuning = TuneOptions(trials_per_task=_TRIALS, batch_size=_BATCH, least_gain=0.0)
    job = TuneJob(tasks=tasks, fingerprint=own, options=tuning, journals=Path())
    with workers, tempfile.TemporaryDirectory() as scratch, Cluster(own.at, options) as cluster:
        while len(cluster.machines(class_of(own))) < devices:
            time.sleep(0.1)
        journal = Journal(Path(scratch) / "journal.jsonl", {})
        progress = Progress(stream=open(Path(scratch) / "said", "w"))  # noqa: SIM115
        began_s = time.perf_counter()
        FleetRun(job, cluster, journal, progress, asleep).run()
        return _TRIALS * _TASKS / (time.perf_counter() - began_s)


def scaling() -> dict[str, float]:
    """Throughput of several devices over that of one."""
    one = throughput(1)
    found = {f"scaling_{count}": round(throughput(count) / one, 2) for count in (4, 8)}
    print(f"{one:.1f} candidates/s of one device; {found}")
    return found


def tasks_of(model: str, machine: Fingerprint, folder: Path) -> list[Task]:
    """The tasks of a model of the zoo on a machine."""
    target = target_from_json(machine.target)
    add_model(str(written(model, folder)), folder / "models", model)
    made = imported_model(model, folder / "models", target, machine.threads, ImportOptions())
    return extract_tasks(made.lowered)


def loopback(model: str) -> dict[str, float]:
    """A model through one Dask worker of this machine over the same without one."""
    ratios: list[tuple[float, float]] = []
    options = {"benchmark": {"rounds": 3}}
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        file = written(model, Path(scratch))
        for number in range(_ROUNDS):
            taken = {}
            for device in ("here", "local:1") if number % 2 == 0 else ("local:1", "here"):
                at = Path(scratch) / f"{device}-{number}"
                taken[device] = fewtune.tune(file, device=device, out=at, options=options)
            here, fleet = taken["here"], taken["local:1"]
            ratios.append((fleet.tuning_s / here.tuning_s, fleet.latency_ms / here.latency_ms))
            print(
                f"round {number + 1}: here {here.tuning_s:.1f} s, {here.latency_ms:.3f} ms; "
                f"fleet {fleet.tuning_s:.1f} s, {fleet.latency_ms:.3f} ms"
            )
    times, latencies = zip(*ratios, strict=True)
    return {
        "loopback_time_ratio": round(statistics.median(times), 3),
        "loopback_latency_ratio": round(statistics.median(latencies), 3),
    }


def board(model: str) -> dict[str, Any]:
    """The best of eight on two RPC servers of this machine over the best of eight here."""
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch, boards(2) as at:
        folder = Path(scratch)
        here = detect_fingerprint(FingerprintOptions(threads=1))
        wanted = json.dumps({**json.loads(here.target), "num-cores": 1})
        there = detect_fingerprint(FingerprintOptions(device=at, target=wanted))
        tasks = tasks_of(model, here, folder)
        largest = sorted(tasks, key=lambda task: -task.info.share)[:_BOARD_TASKS]
        options = TuneOptions(
            trials_per_task=8, batch_size=8, strategy="random", informed_start=False,
            predictor="never", start_from=str(folder / "none"), least_gain=0.0,
        )  # fmt: skip
        ratios = []
        for number in range(_ROUNDS):
            pair = [("here", here), ("board", there)]
            found = {}
            for name, own in pair if number % 2 == 0 else pair[::-1]:
                journals = folder / f"{name}{number}"
                journals.mkdir()
                given = {"tasks": largest, "fingerprint": own, "options": options}
                measured(TuneJob(**given, journals=journals))
                found[name] = times_of(journals)
            for task in found["here"].keys() & found["board"].keys():
                of_here, of_board = found["here"][task], found["board"][task]
                # Later batches go where the model gains most: that need not be the same task.
                both = sorted(of_here.keys() & of_board.keys())
                best_s = min(of_here[key] for key in both)
                chosen = min(both, key=of_board.__getitem__)
                ratios.append(of_board[chosen] / best_s)
    return {"board_best_ratio": round(statistics.median(ratios), 3)}


def times_of(journals: Path) -> dict[str, dict[str, float]]:
    """By task, the seconds of each valid trial in the one journal of a folder, by its trace."""
    (path,) = journals.glob("*.jsonl")
    times_s: dict[str, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line.partition(" ")[2])  # after the checksum
        for task, trials in event.get("by_task", {}).items():
            valid = [trial for trial in trials if trial.get("run_s")]
            found = {json.dumps(each["trace"]): statistics.median(each["run_s"]) for each in valid}
            times_s.setdefault(task, {}).update(found)
    return times_s


def note(found: dict[str, Any]) -> None:
    """Write figures beside those that stand already."""
    known = json.loads(OUT.read_text()) if OUT.is_file() else {}
    write_text(OUT, canonical_json({**known, **found}))


def main() -> None:
    """Measure what is asked for, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["scaling", "loopback", "board"])
    parser.add_argument("--model", default="squeezenet_v1_1", help="of the zoo")
    options = parser.parse_args()
    if options.only in (None, "scaling"):
        note(scaling())
    if options.only in (None, "loopback"):
        note(loopback(options.model))
    if options.only in (None, "board"):
        note(board(options.model))
    print(OUT.read_text())


if __name__ == "__main__":
    main()
