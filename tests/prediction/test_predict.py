"""Prediction for a small network: nothing is measured, and nobody takes it for measured."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import psutil
import pytest

from fewtune.artifacts import LogInfo, PredictReport, TuneReport
from fewtune.bank.bank import Bank
from fewtune.compile.compile import compile_model
from fewtune.errors import InputError
from fewtune.options import PredictOptions, SelectOptions, ShareOptions, TuneOptions
from fewtune.prediction.predict import Chosen, lots, predict_apart
from fewtune.runtime.tvm import set_threads, usable_cores
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.selection.select import select_tasks
from fewtune.sharing.share import share_schedules
from fewtune.storage.database import best_trials, logs_below, merge, read_database
from fewtune.trial.trial import trace_key
from fewtune.tuning.tune import tune
from fewtune.workers.worker import KernelMaker, Made
from tests import tuned_tiny
from tests.prediction.crashing import DyingJob


def chosen_of(letter: str, count: int = 60, bank: Path | None = None, **options: object) -> Chosen:
    """What is chosen for one convolution, by a few points."""
    name = tuned_tiny.convolutions()[letter].info.name
    job = tuned_tiny.predict_job(None, PredictOptions(**options))
    chosen, _ = job.model_copy(update={"lot": {name: count}, "bank": bank or job.bank}).run()
    set_threads(usable_cores())
    return chosen[name]


def made_wrong(is_wrong: Callable[[int], bool], made: list[str]) -> object:
    """Kernels that are wrong by their order; ``made`` gets the tasks' modules."""

    def make(_maker: KernelMaker, _scheduled: object, wanted: ScheduleCheck) -> Made:
        made.append(wanted.key)
        return Made(None, [], "9 elements differ" if is_wrong(len(made)) else "")

    return mock.patch.object(KernelMaker, "make", make)


@pytest.mark.slow
def test_a_library_of_what_was_predicted_verifies(tmp_path):
    report = PredictReport.read(tuned_tiny.predicted())
    told = {line.task: line.status for line in report.tasks}
    convolutions = {task.info.name for task in tuned_tiny.convolutions().values()}
    assert {told[name] for name in convolutions} == {"predicted"}
    assert all(line.promising for line in report.tasks if line.status == "predicted")
    compiled = compile_model(tuned_tiny.compile_job(tuned_tiny.predicted(), tmp_path))
    assert compiled.allowances <= 1
    assert compiled.scheduled_from_log >= len(convolutions)
    assert compiled.left_out == compiled.replaced == []


@pytest.mark.slow
def test_a_wrong_kernel_gives_way_to_the_next_point():
    made: list[str] = []
    with made_wrong(lambda _: False, made):
        first = chosen_of("a")
    assert len(made) == 1
    with made_wrong(lambda place: place <= 2, made := []):
        third = chosen_of("a")
    assert len(made) == 3
    assert third.line.status == "predicted"
    assert third.trial is not None
    assert third.trial.key != first.trial.key


@pytest.mark.slow
def test_where_every_kernel_is_wrong_the_default_stays():
    made: list[str] = []
    with made_wrong(lambda _: True, made):
        found = chosen_of("a")
    assert len(made) > 1
    assert (found.trial, found.line.status) == (None, "default")
    assert found.line.note == "9 elements differ"


@pytest.mark.slow
def test_what_a_bank_holds_itself_is_known(tmp_path):
    bank = tuned_tiny.bank(tmp_path)
    report = Bank.read(bank)
    (entry,) = report.entries

    def found(fastest_times: float) -> Chosen:
        held = entry.model_copy(update={"fastest_ms": fastest_times * entry.best_ms})
        report.model_copy(update={"entries": [held]}).write(bank)
        return chosen_of("b", bank=bank)

    known = found(1.0)
    assert (known.line.status, known.line.origin, known.line.spread) == ("known", "earlier", 0.0)
    assert known.line.known_ms == pytest.approx(entry.best_ms)
    # Its default schedule was faster than what can be taken.
    slower = found(0.9)
    assert (slower.line.status, slower.trial) == ("default", None)


def test_lots_hold_every_task_once_and_take_about_the_same_time():
    shares = {"heavy": 0.3, **{f"light{number}": 0.1 for number in range(7)}}
    divided = lots(shares, 2)
    assert sorted(name for lot in divided for name in lot) == sorted(shares)
    loads = [sum(lot.values()) for lot in divided]
    assert abs(loads[0] - loads[1]) <= 2000
    assert lots({}, 1) == [{}]


@pytest.mark.slow
def test_processes_apart_predict_alike_and_what_tvm_crashes_on_keeps_its_default(tmp_path):
    info = tuned_tiny.convolutions()["b"].info
    here = tuned_tiny.predicted()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    job = tuned_tiny.predict_job(tmp_path / "apart", PredictOptions())
    predict_apart(DyingJob(**dict(job), dies_at=info.workload), 2)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    told = {line.task: line for line in PredictReport.read(tmp_path / "apart").tasks}
    died = told.pop(info.name)
    assert died.status == "default"
    assert f"(SIGSEGV) while it was predicting a schedule of {info.name}" in died.note
    alike = {line.task: line for line in PredictReport.read(here).tasks}
    assert alike.pop(info.name).status == "predicted"
    assert told == alike
    databases = [read_database(each) for each in (tmp_path / "apart", here)]
    for letter in "acd":
        module = tuned_tiny.convolutions()[letter].mod
        (ours,), (theirs,) = (best_trials(each, module, 9) for each in databases)
        assert trace_key(ours.trace) == trace_key(theirs.trace)


@pytest.mark.slow
def test_a_predicted_log_is_marked_and_enters_no_bank_and_no_merged_log(tmp_path):
    log = LogInfo.read(tuned_tiny.predicted())
    assert (log.predicted, log.checked) == (True, True)
    with pytest.raises(InputError, match="nobody measured"):
        merge([tuned_tiny.predicted()], tmp_path)
    shutil.copytree(tuned_tiny.predicted(), tmp_path / "logs" / "predicted")
    with pytest.raises(InputError, match="nobody measured"):
        logs_below(tmp_path / "logs", tuned_tiny.fingerprint(), "banked")


@pytest.mark.slow
def test_without_a_predictor_rules_choose_and_nobody_knows_what_is_lost():
    by_rule = chosen_of("a", predictor="never").line
    assert (by_rule.status, by_rule.spread) == ("predicted", 0.5)
    assert chosen_of("a").line.spread < by_rule.spread


def test_a_strategy_that_predicts_measures_nothing(tmp_path):
    # It begins from no log, so one that may not be used is not read.
    options = TuneOptions(mode="predict", start_from=str(tuned_tiny.predicted().parent))
    selection, _ = select_tasks(
        tuned_tiny.tasks(),
        SelectOptions(method="predict"),
        target=tuned_tiny.target(),
        model=tuned_tiny.NAME,
        strategy="oneshot",
    )
    assert not selection.clusters
    assert options.predicts(selection.method)
    assert not TuneOptions().predicts("cliques")
    for name in ("tune", "share"):
        (tmp_path / name).mkdir()
    own, journals = tuned_tiny.fingerprint(), tmp_path / "journals"
    tune(tuned_tiny.tasks(), selection, own, options, journals, tmp_path / "tune")
    assert TuneReport.read(tmp_path / "tune").is_predicted
    report = share_schedules(
        tuned_tiny.tasks(),
        selection,
        tuned_tiny.predicted(),
        tmp_path / "tune",
        own,
        ShareOptions(),
        journals,
        tmp_path / "share",
        tmp_path / "bank",
        tuned_tiny.extracted(),
    )
    statuses = {line.task: line.status for line in PredictReport.read(tuned_tiny.predicted()).tasks}
    assert {line.task: line.status for line in report.tasks} == statuses
    assert LogInfo.read(tmp_path / "share").predicted
    assert not (tmp_path / "journals").exists()
    assert (report.trials, report.stopped_by) == (0, "predicted")
    ours, theirs = (read_database(each) for each in (tmp_path / "share", tuned_tiny.predicted()))
    module = tuned_tiny.convolutions()["a"].mod
    assert len(best_trials(ours, module, 9)) == len(best_trials(theirs, module, 9)) == 1
