"""Schedules shared on the tiny model, measured in the model."""

import shutil
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from fewtune.artifacts import Curve, LogInfo, PredictReport, ShareReport, TuneReport
from fewtune.errors import InputError
from fewtune.options import ShareOptions
from fewtune.storage.database import RECORDS, WORKLOADS, log_info, require_own
from fewtune.tuning import judges
from tests import tuned_tiny
from tests.made.sessions import events_of

pytestmark = pytest.mark.slow

OPTIONS = ShareOptions(trials_per_task=2, finals=2)


def share(directory: Path) -> ShareReport:
    journals = tuned_tiny.scratch() / "share-journals"
    with tuned_tiny.one_round():
        return tuned_tiny.share(directory, journals, OPTIONS, tuned_tiny.extracted())


@cache
def shared() -> tuple[ShareReport, Path]:
    directory = tuned_tiny.scratch() / "share"
    return share(directory), directory


def test_every_task_is_measured_in_the_model():
    report, directory = shared()
    names = {letter: tuned_tiny.convolutions()[letter].info.name for letter in "abc"}
    assert [line.task for line in report.tasks] == sorted((names["a"], names["c"]))
    assert [line.task for line in report.representatives] == [names["b"]]
    assert all(line.best_ms > 0 for line in [*report.tasks, *report.representatives])
    assert (report.note, report.stopped_by) == ("", "converged")
    (held,) = report.rounds
    assert (held.name, held.tasks) == ("in the model", 3)
    assert 0 < report.trials <= held.trials
    assert held.spent_s >= held.run_s > 0
    (path,) = (tuned_tiny.scratch() / "share-journals").glob("*.jsonl")
    rounds = [event for event in events_of(path) if event["kind"] == "round"]
    # Two processes measured; the model has other kernels than these.
    assert all(event["rest_s"] > 0 for event in rounds)
    points = Curve.read(directory).points
    assert points[0].trials == TuneReport.read(tuned_tiny.tuned()).trials
    assert points[0].elapsed_s >= PredictReport.read(tuned_tiny.predicted()).predicting_s
    assert all(point.estimated_latency_ms > 0 for point in points)


def test_a_model_that_cannot_be_made_of_its_kernels_is_measured_alone(tmp_path):
    folder = shutil.copytree(
        tuned_tiny.extracted(), tmp_path / "tasks", ignore=shutil.ignore_patterns("skeleton.json")
    )
    with tuned_tiny.one_round():
        report = tuned_tiny.share(tmp_path / "share", tmp_path / "journals", OPTIONS, folder)
    assert {held.name for held in report.rounds} == {"alone"}
    assert report.trials > 0


def test_the_log_is_of_this_machine_and_measured():
    _, directory = shared()
    info = LogInfo.read(directory).model_copy(update={"sha256": ""})
    assert info == log_info(tuned_tiny.fingerprint())


def test_a_session_that_ended_gives_the_same_again(tmp_path):
    report, directory = shared()
    assert share(tmp_path / "again") == report
    for name in (WORKLOADS, RECORDS):
        assert (tmp_path / "again" / name).read_bytes() == (directory / name).read_bytes()


def test_what_cannot_be_linked_is_measured_alone(tmp_path, monkeypatch):
    def failing(*_: object) -> None:
        raise CalledProcessError(1, ["objcopy"])

    monkeypatch.setattr(judges, "renamed", failing)
    with tuned_tiny.one_round():
        given = (tmp_path / "journals", OPTIONS, tuned_tiny.extracted())
        report = tuned_tiny.share(tmp_path / "share", *given)
        assert report.note.startswith("not measured in the model: contenders are not linked: ")
        assert [each.name for each in report.rounds] == ["alone"]
        assert report.trials > 0
        assert all(line.best_ms for line in report.tasks)
        # A run that goes on from the journal does not try again.
        assert tuned_tiny.share(tmp_path / "again", *given) == report


def test_a_contender_that_takes_too_long_to_build_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(judges, "_MAKE_LIMIT_S", 0.0)
    with tuned_tiny.one_round():
        given = (tmp_path / "journals", OPTIONS, tuned_tiny.extracted())
        report = tuned_tiny.share(tmp_path / "share", *given)
    assert [each.name for each in report.rounds] == ["in the model"]
    failures = [line.failures for line in [*report.tasks, *report.representatives]]
    assert {cause for each in failures for cause in each} == {"build_timeout"}


def test_a_log_measured_in_another_way_is_refused(tmp_path):
    tuned = shutil.copytree(tuned_tiny.tuned(), tmp_path / "tuned")
    LogInfo.read(tuned).model_copy(update={"measuring": 5}).write(tuned)
    with pytest.raises(InputError, match="measured in another way.*run its stage again"):
        require_own(tuned, tuned_tiny.fingerprint())
    require_own(tuned_tiny.tuned(), tuned_tiny.fingerprint())
    require_own(tmp_path, tuned_tiny.fingerprint())
