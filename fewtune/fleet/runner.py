"""Runs a stage's measuring work: in a child process here, or on a fleet."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import MachineError
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.tuning.child_process import journal_path, lay_crash, supervise
from fewtune.tuning.job import Runner, TuneJob, Work
from fewtune.tuning.task_state import crash_text

# The fields of a job that name a folder of this machine.
_FOLDERS = ("bank", "model")
_MOST_LOSSES = 5


def runner_of(fingerprint: Fingerprint) -> Runner:
    """The runner of measuring work for the device of a fingerprint (such as `supervise`)."""
    return on_fleet if fingerprint.is_fleet else supervise


def on_fleet(work: Work) -> list[dict[str, Any]]:
    """Carry work out on a fleet; as `fewtune.tuning.child_process.supervise`.

    Tuning is spread over all machines; other work, such as sharing, runs on one of them.
    """
    from fewtune.fleet.cluster import Cluster
    from fewtune.fleet.orders import Orders, options_of
    from fewtune.fleet.tuning import FleetTuning

    path, fingerprint = journal_path(work.journal_directory, work.header), work.fingerprint
    journal, progress = Journal(path, work.header), Progress(work.progress_path)
    is_resumed = bool(journal.events)
    key = _run_of(journal)
    try:
        with Cluster(fingerprint.at, options_of(fingerprint), progress.say) as cluster:
            orders = Orders(cluster, fingerprint)
            progress.say(f"{len(orders.machines)} machines of {fingerprint.at} take part")
            if isinstance(work.job, TuneJob):
                FleetTuning(work.tasks, work.job, journal, progress, orders, key, is_resumed).run()
            else:
                on_one_machine(work, journal, progress, orders, key)
    finally:
        progress.close()
        journal.close()
    journal = Journal(path, work.header)
    journal.close()
    return journal.events


def on_one_machine(
    work: Work,
    journal: Journal,
    progress: Progress,
    orders: Any,
    key: str,
) -> None:
    """Run work on one machine, a batch at a time; if it is lost, on another one."""
    from fewtune.fleet.orders import packed

    job, place = work.job.as_json(), work.place
    order = {"key": key, "purpose": "share schedules", "work": place}
    known, losses = list(journal.events), 0

    def whole() -> dict[str, Any]:
        folders = {name: job[name] for name in _FOLDERS if job.get(name)}
        return {
            "job": job,
            "folders": {name: _files(str(folder)) for name, folder in folders.items()},
            "tasks": [packed(task) for task in work.tasks],
            "events": known,
        }

    machine = orders.idle[0]
    while True:
        orders.give(machine, None, order, whole)
        while (answered := orders.next_answer()) is None:
            pass
        answer = answered[2]
        for event in answer.events:
            journal.append(event)
            known.append(event)
        if answer.fault is not None:
            raise answer.fault
        if answer.is_done:
            return
        if answer.died:
            journal.events = known
            task = lay_crash(journal, answer.died)
            known.append({"kind": "crash", "task": task, "signal": answer.died})
            progress.say(f"{task} is left out: {crash_text(answer.died)}")
        elif answer.lost:
            losses += 1
            if losses > _MOST_LOSSES:
                raise MachineError("machine after machine is lost: see what ends them")
            progress.say(f"{machine} is lost; another one goes on")
            orders.look()
            machine = orders.idle[0]


def _run_of(journal: Journal) -> str:
    """The name of this run on its machines, which keep its sessions until it has ended.

    Another run of the same work has another name, since it must not get this run's answers.
    """
    known = [event["run"] for event in journal.events if event["kind"] == "run"]
    if known:
        return known[0]
    event = {"kind": "run", "run": secrets.token_hex(8)}
    journal.append(event)
    journal.events.append(event)
    return event["run"]


def _files(folder: str) -> dict[str, bytes]:
    """The files of a folder, by their paths in it."""
    root = Path(folder)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
