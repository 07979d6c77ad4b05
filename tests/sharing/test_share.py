"""Schedules shared on the tiny model: moved, measured, kept only if they beat the default."""

import json
import shutil
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from fewtune.artifacts import Curve, LogInfo, ShareReport, TuneReport
from fewtune.errors import InputError
from fewtune.options import ShareOptions
from fewtune.schedule.space.design_space import sampling
from fewtune.sharing.plan import takers_of
from fewtune.storage.database import RECORDS, WORKLOADS, best_trials, read_database, write_database
from fewtune.storage.journal import Journal
from fewtune.storage.log_archive import log_info, require_own
from fewtune.trial.trial import trace_key
from tests import tuned_tiny

pytestmark = pytest.mark.slow

OPTIONS = ShareOptions(top="50%", trials_per_task=2)


def share(directory: Path, journals: Path, options: ShareOptions = OPTIONS) -> ShareReport:
    return tuned_tiny.share(directory, journals, options)


@cache
def shared() -> tuple[ShareReport, Path]:
    directory = tuned_tiny.scratch() / "share"
    return share(directory, tuned_tiny.scratch() / "share-journals"), directory


def measured_lines(journals: Path) -> set[bytes]:
    """The lines of all journals that hold a measurement."""
    lines = [line for path in journals.rglob("*.jsonl") for line in path.read_bytes().split(b"\n")]
    return {line for line in lines if b'"trace":' in line}


@pytest.mark.parametrize(
    ("top", "schedules", "count"),
    [("10", 64, 10), ("10", 3, 3), (1, 64, 1), ("5%", 64, 3), ("5%", 8, 1), ("100%", 7, 7)],
)
def test_how_many_are_shared(top, schedules, count):
    assert ShareOptions(top=top).count(schedules) == count


def test_every_dependent_is_accounted_for():
    report, _ = shared()
    donor = tuned_tiny.convolutions()["b"].mod
    records = best_trials(read_database(tuned_tiny.tuned()), donor, 100)
    # A default schedule makes no choices to give; a trial that failed is in no log.
    given = OPTIONS.count(sum(bool(sampling(record.trace)) for record in records))
    assert given >= 2
    names = {letter: tuned_tiny.convolutions()[letter].info.name for letter in "abc"}
    assert [line.task for line in report.tasks] == sorted((names["a"], names["c"]))
    for line in report.tasks:
        assert line.donors == [names["b"]]
        assert line.status in ("shared", "drawn", "default")
        assert line.offered == given
        assert line.best_ms is not None
        assert (line.donor == names["b"]) == (line.status == "shared")
        # Another schedule may have taken exactly as long as the default: clocks have steps.
        assert line.status != "default" or line.best_ms == line.default_ms
    assert report.representatives == []
    assert report.trials == sum(line.trials for line in report.tasks)
    named = [each.name for each in report.rounds]
    assert named[:1] == ["first donors"]
    assert named[1:] in ([], ["duels"])
    assert sum(each.trials for each in report.rounds) == report.trials
    assert report.rounds[0].tasks == 2


@pytest.mark.parametrize("doubtful", [0.0, float("inf")])
def test_a_default_is_measured_where_it_may_be_the_better_one(doubtful, tmp_path):
    rules = replace(tuned_tiny.RULES, doubtful=doubtful)
    report = tuned_tiny.share(tmp_path / "share", tmp_path / "journals", OPTIONS, rules=rules)
    assert {line.default_ms is None for line in report.tasks} == {doubtful == 0.0}
    first, points = report.rounds[0], Curve.read(tmp_path / "share").points
    # Without a default there is nothing that the first schedule could be said to gain on.
    assert first.gained_ms == 0 or doubtful > 0
    # It counts in the estimate all the same, from the start: all that races gained came off it. A
    # duel's gain is over the race's winner as the duel saw it, which may be at another pace.
    duels = sum(each.tasks for each in report.rounds if each.name == "duels")
    gained_ms = sum(each.gained_ms for each in report.rounds if each.name != "duels")
    begun = points[len(Curve.read(tuned_tiny.tuned()).points) - 1]
    raced = points[len(points) - 1 - duels]
    assert begun.estimated_latency_ms - raced.estimated_latency_ms == pytest.approx(gained_ms)
    assert raced.estimated_latency_ms > 0
    shared_ms = sum(line.best_ms for line in report.tasks)
    assert points[-1].estimated_latency_ms >= shared_ms


@pytest.mark.parametrize("part", [0.0, 1.0])
def test_a_small_task_takes_candidates_if_its_default_takes_long(part, tmp_path):
    name, chosen = tuned_tiny.convolutions()["d"].info.name, tuned_tiny.selection()
    aside = [each for each in chosen.set_aside if each != name]
    chosen = chosen.model_copy(update={"small": [name], "set_aside": aside})
    rules = replace(tuned_tiny.RULES, small_part=part)
    with mock.patch("tests.tuned_tiny.selection", lambda: chosen):
        report = tuned_tiny.share(tmp_path / "share", tmp_path / "journals", OPTIONS, rules=rules)
    line = {line.task: line for line in report.tasks}[name]
    assert line.default_ms is not None
    assert line.best_ms is not None
    assert line.donors == []
    assert (line.trials > 0) == (part == 0.0)
    assert (line.status == "default") or part == 0.0
    # It is in the log, for the compiler to take.
    task = tuned_tiny.convolutions()["d"]
    assert best_trials(read_database(tmp_path / "share"), task.mod, 1)


def test_the_log_holds_all_tasks_the_best_first():
    report, directory = shared()
    database = read_database(directory)
    info = LogInfo.read(directory).model_copy(update={"sha256": ""})
    assert info == log_info(tuned_tiny.fingerprint())
    best_ms = {line.task: line.best_ms for line in report.tasks}
    for letter in "ac":
        task = tuned_tiny.convolutions()[letter]
        (best,) = best_trials(database, task.mod, 1)
        median_s = statistics.median(float(value) for value in best.run_secs)
        assert median_s * 1e3 == pytest.approx(best_ms[task.info.name])
    assert (
        Curve.read(directory).points[-1].trials >= Curve.read(tuned_tiny.tuned()).points[-1].trials
    )


def figures(log: Path) -> dict[str, float]:
    """Seconds of the representative's trials in a log, by their traces."""
    records = best_trials(read_database(log), tuned_tiny.convolutions()["b"].mod, 1000)
    return {trace_key(record.trace): float(record.run_secs[0]) for record in records}


def test_representatives_stay_as_they_are():
    assert figures(shared()[1]) == figures(tuned_tiny.tuned())


def test_a_log_measured_in_another_way_is_refused(tmp_path):
    tuned = shutil.copytree(tuned_tiny.tuned(), tmp_path / "tuned")
    LogInfo.read(tuned).model_copy(update={"measuring": 1}).write(tuned)
    with pytest.raises(InputError, match="measured in another way.*run its stage again"):
        require_own(tuned, tuned_tiny.fingerprint())
    require_own(tuned_tiny.tuned(), tuned_tiny.fingerprint())
    require_own(tmp_path, tuned_tiny.fingerprint())


def test_a_resumed_sharing_measures_nothing_twice(tmp_path):
    first, _ = shared()
    journals = tuned_tiny.scratch() / "share-journals"
    before = measured_lines(journals)
    again = share(tmp_path / "again", journals)
    assert measured_lines(journals) == before
    assert again == first
    for name in (WORKLOADS, RECORDS):
        assert (tmp_path / "again" / name).read_bytes() == (shared()[1] / name).read_bytes()


def test_a_crash_while_sharing_costs_its_dependent(tmp_path):
    first = share(tmp_path / "first", tmp_path / "journals")
    (path,) = (tmp_path / "journals").glob("*.jsonl")
    lines = path.read_bytes().split(b"\n")
    header = json.loads(lines[0].partition(b" ")[2])
    task = first.tasks[0].task
    kept = [line for line in lines[:-1] if f'"task":"{task}"'.encode() not in line]
    path.write_bytes(b"\n".join(kept) + b"\n")
    journal = Journal(path, {k: v for k, v in header.items() if k not in ("kind", "format")})
    journal.append({"kind": "start", "task": task})
    journal.append({"kind": "crash", "task": task, "signal": "SIGSEGV"})
    journal.close()
    report = share(tmp_path / "again", tmp_path / "journals")
    crashed = {line.task: line for line in report.tasks}[task]
    assert "its search crashed (SIGSEGV)" in crashed.note
    assert crashed.donor is None


def test_a_representative_that_was_not_reached_is_served_all_the_same(tmp_path):
    name = tuned_tiny.selection().representatives[0]
    tuned = tmp_path / "tune"
    shutil.copytree(tuned_tiny.tuned(), tuned)
    report = TuneReport.read(tuned)
    lines = [
        line.model_copy(update={"status": "not_reached", "trials": 0}) for line in report.tasks
    ]
    report.model_copy(update={"tasks": lines, "trials": 0}).write(tuned)
    task = next(task for task in tuned_tiny.tasks() if task.info.name == name)
    for file in (RECORDS, WORKLOADS):
        (tuned / file).unlink()
    write_database(tuned, {name: task.mod}, {name: []}, tuned_tiny.target())
    with mock.patch("tests.tuned_tiny.tuned", lambda: tuned):
        found = share(tmp_path / "share", tmp_path / "journals")
    line = {line.task: line for line in found.tasks}[name]
    assert line.status in ("drawn", "default")
    assert line.trials > 0
    assert line.donors == []
    # In full tuning nothing is shared.
    clusters = [
        cluster.model_copy(update={"members": [cluster.representative]})
        for cluster in tuned_tiny.selection().clusters
    ]
    full = tuned_tiny.selection().model_copy(update={"method": "all", "clusters": clusters})
    assert takers_of(full, TuneReport.read(tuned)) == {}
