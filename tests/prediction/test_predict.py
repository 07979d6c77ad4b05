"""One-shot tuning of a small network: nothing is measured, and nobody takes it for measured."""

import time
from pathlib import Path

import psutil
import pytest

from fewtune.artifacts import LogInfo, Selection, ShareReport, TuneReport
from fewtune.compile.compile import TunedParts, compile_model
from fewtune.compile.options import CompileOptions
from fewtune.errors import InputError
from fewtune.machine import device_lock
from fewtune.options import ShareOptions, TuneOptions
from fewtune.prediction.predict import choose_schedules, points_by_task
from fewtune.prediction.predict_apart import PredictJob, lots, predict_apart
from fewtune.prediction.write import empty_report, write_prediction
from fewtune.selection.options import SelectOptions
from fewtune.selection.select import select_tasks
from fewtune.storage.database import RECORDS, read_database
from fewtune.storage.log_archive import logs_below, merge
from fewtune.task.extract import write_tasks
from tests import tuned_tiny
from tests.oneshot.crashing import DyingJob


def selected() -> Selection:
    selection, _ = select_tasks(
        tuned_tiny.tasks(),
        SelectOptions(method="predict", min_share=0.0),
        target=tuned_tiny.target(),
        model=tuned_tiny.NAME,
        strategy="oneshot",
    )
    assert not selection.clusters
    return selection


def predicted(directory: Path, options: ShareOptions = ShareOptions()) -> ShareReport:  # noqa: B008
    directory.mkdir()
    began_s = time.perf_counter()
    tasks, machine = tuned_tiny.tasks(), tuned_tiny.fingerprint()
    points = points_by_task([task.info for task in tasks], selected())
    chosen, prediction = choose_schedules(tasks, points, machine, options)
    return write_prediction(tasks, selected(), machine, chosen, prediction, began_s, directory)


def laid_out(directory: Path) -> dict[str, Path]:
    """The tiny network's tasks, selection and machine, as stages leave them."""
    tasks, chosen, machine = (directory / name for name in ("tasks", "select", "fingerprint"))
    for folder in (tasks, chosen, machine):
        folder.mkdir()
    fingerprint = tuned_tiny.fingerprint()
    write_tasks(tuned_tiny.tasks(), tuned_tiny.NAME, fingerprint.target, tasks)
    selected().write(chosen)
    fingerprint.write(machine)
    return {"task_directory": tasks, "select_directory": chosen, "fingerprint": machine}


@pytest.mark.slow
def test_no_worker_and_no_lock_and_the_library_verifies(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the device was to be held")

    monkeypatch.setattr(device_lock, "device_lock", refuse)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    report = predicted(tmp_path / "share")
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before
    assert report.trials == 0
    assert report.prediction is not None
    assert report.prediction.points > 100
    told = {line.task: line.status for line in report.tasks}
    convolutions = {task.info.name for task in tuned_tiny.convolutions().values()}
    assert {told[name] for name in convolutions} == {"predicted"}
    (tmp_path / "compile").mkdir()
    compiled = compile_model(
        TunedParts(
            tuned_tiny.NAME,
            "oneshot",
            tuned_tiny.lowered(),
            tuned_tiny.tasks(),
            tuned_tiny.imported(),
            tmp_path / "share",
        ),
        tuned_tiny.fingerprint(),
        CompileOptions(),
        tmp_path / "compile",
    )
    assert compiled.allowances <= 1
    assert compiled.scheduled_from_log >= len(convolutions)


@pytest.mark.slow
def test_processes_apart_predict_the_same_log_and_leave_nothing(tmp_path):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    job = PredictJob(**laid_out(tmp_path), options=ShareOptions(), directory=tmp_path / "apart")
    (tmp_path / "apart").mkdir()
    report = predict_apart(job, 2)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    here = predicted(tmp_path / "here")
    assert (tmp_path / "apart" / RECORDS).read_bytes() == (tmp_path / "here" / RECORDS).read_bytes()
    assert report.tasks == here.tasks
    assert report.prediction == here.prediction


def test_lots_hold_every_task_once_and_take_about_the_same_time():
    points = {"heavy": 4000, **{f"light{number}": 1000 for number in range(7)}}
    divided = lots(points, 2)
    assert sorted(name for lot in divided for name in lot) == sorted(points)
    loads = [sum(points[name] for name in lot) for lot in divided]
    assert abs(loads[0] - loads[1]) <= 2000
    assert lots({}, 1) == [{}]


@pytest.mark.slow
def test_a_task_that_tvm_crashes_on_keeps_its_default(tmp_path):
    info = tuned_tiny.convolutions()["b"].info
    (tmp_path / "share").mkdir()
    job = DyingJob(
        **laid_out(tmp_path),
        options=ShareOptions(),
        directory=tmp_path / "share",
        dies_at=info.workload,
    )
    report = predict_apart(job, 2)
    told = {line.task: line for line in report.tasks}
    assert told[info.name].status == "default"
    assert f"(SIGSEGV) while it was predicting a schedule of {info.name}" in told[info.name].note
    others = {task.info.name for task in tuned_tiny.convolutions().values()} - {info.name}
    assert {told[name].status for name in others} == {"predicted"}


@pytest.mark.slow
def test_a_predicted_log_is_marked_and_enters_no_bank_and_no_merged_log(tmp_path):
    predicted(tmp_path / "share")
    assert LogInfo.read(tmp_path / "share").predicted
    (tmp_path / "merged").mkdir()
    with pytest.raises(InputError, match="nobody measured"):
        merge([tmp_path / "share"], tmp_path / "merged")
    with pytest.raises(InputError, match="nobody measured"):
        logs_below(tmp_path, tuned_tiny.fingerprint(), "banked")


@pytest.mark.slow
def test_without_a_predictor_rules_choose_and_a_warning_says_so(tmp_path):
    report = predicted(tmp_path / "share", ShareOptions(predictor="never"))
    assert report.prediction is not None
    assert report.prediction.predictor is None
    assert "by rule" in report.prediction.warning


def test_tuning_that_predicts_writes_an_empty_log(tmp_path):
    options = TuneOptions(mode="predict")
    selection, _ = select_tasks(
        tuned_tiny.tasks(),
        SelectOptions(method="predict"),
        target=tuned_tiny.target(),
        model=tuned_tiny.NAME,
        strategy="oneshot",
    )
    assert options.predicts(selection.method)
    assert not TuneOptions().predicts("cliques")
    empty_report(selection, tuned_tiny.fingerprint(), options, tmp_path)
    assert TuneReport.read(tmp_path).is_predicted
    assert not list(read_database(tmp_path).get_all_tuning_records())
