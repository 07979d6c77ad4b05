"""Schedules that come from a bank."""

import json
from pathlib import Path

import pytest
import tvm_ffi

from fewtune.artifacts import BankDonor, Curve, Selection, ShareReport
from fewtune.bank.bank import Bank
from fewtune.bank.build import build_bank
from fewtune.bank.options import BankOptions
from fewtune.bank.report import BankEntry, BankReport
from fewtune.errors import InputError
from fewtune.options import ShareOptions
from fewtune.runtime.tvm import ms, tvm
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import fit
from fewtune.search.evolutionary import EvolutionarySearch
from fewtune.sharing.job import SharingRules
from fewtune.sharing.search_round import SEARCHED
from fewtune.sharing.share import share_schedules
from fewtune.storage.database import best_trials, read_database
from fewtune.storage.log_archive import merge
from fewtune.tuning.tune import tune
from tests import tuned_tiny

pytestmark = pytest.mark.slow

OPTIONS = ShareOptions(top=2, draws=0, trials_per_task=2)


def share(
    selection: Selection,
    root: Path,
    bank: Path | None = None,
    tuned: Path | None = None,
    options: ShareOptions = OPTIONS,
    rules: SharingRules = tuned_tiny.RULES,
) -> ShareReport:
    directory = root / f"share{len(list(root.glob('share*')))}"
    directory.mkdir()
    with tuned_tiny.in_this_process():
        return share_schedules(
            tuned_tiny.tasks(),
            selection,
            tuned_tiny.tuned() if tuned is None else tuned,
            tuned_tiny.fingerprint(),
            options,
            root / "journals",
            directory,
            bank_directory=bank,
            rules=rules,
        )


def names() -> dict[str, str]:
    return {letter: task.info.name for letter, task in tuned_tiny.convolutions().items()}


@pytest.fixture
def bank(tmp_path):
    """A bank of the one tuned task."""
    (tmp_path / "logs" / "earlier").mkdir(parents=True)
    merge([tuned_tiny.tuned()], tmp_path / "logs" / "earlier")
    (tmp_path / "bank").mkdir()
    options = BankOptions(logs=str(tmp_path / "logs"))
    build_bank(options, tuned_tiny.fingerprint(), tmp_path / "bank")
    return tmp_path / "bank"


def banked() -> Selection:
    """The tiny model with nothing tuned: all that is searched comes from the bank."""
    donor = BankDonor(
        workload=tuned_tiny.convolutions()["b"].info.workload, origin="earlier", similarity=0.9
    )
    return tuned_tiny.selection().model_copy(
        update={"clusters": [], "banked": {names()[letter]: [donor] for letter in "ac"}}
    )


def distinct(bank: Path, name: str) -> int:
    """How many schedules of a task the bank's fastest two are.

    Which two these are, the machine says; in a smaller task two may be one.
    """
    (task,) = (each for each in tuned_tiny.convolutions().values() if each.info.name == name)
    space = SearchSpace(task.mod, tuned_tiny.target())
    given = Bank.read(bank).donations(tuned_tiny.convolutions()["b"].info.workload)[:2]
    points = list(dict.fromkeys(fit(donation, space) for donation in given))
    made = space.make_all(points, range(1, len(points) + 1))
    return len({tvm_ffi.structural_hash(one.schedule.mod) for one in made})


def test_a_bank_serves_what_it_is_selected_for(bank, tmp_path):
    report = share(banked(), tmp_path, bank)
    assert {line.task for line in report.tasks} == {names()["a"], names()["c"]}
    workload = tuned_tiny.convolutions()["b"].info.workload
    for line in report.tasks:
        assert line.donors == [f"earlier:{workload[:8]}"]
        assert (line.offered, line.trials) == (2, distinct(bank, line.task))
        assert line.status in ("shared", "default")


def applied(record: ms.database.TuningRecord, module: tvm.IRModule) -> tvm.IRModule:
    schedule = tvm.s_tir.Schedule(module)
    record.trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod


def held(bank: Path, fastest_times: float = 1.0) -> BankEntry:
    """The bank's one entry; its default schedule takes so many times what its best does."""
    report = BankReport.read(bank)
    (entry,) = report.entries
    entry = entry.model_copy(update={"fastest_ms": fastest_times * entry.best_ms})
    report.model_copy(update={"entries": [entry]}).write(bank)
    return entry


def own() -> Selection:
    """The tiny model whose convolution ``b`` the bank holds itself; ``a`` takes from it."""
    made, found = banked(), names()
    (donor,) = made.banked[found["a"]]
    return made.model_copy(
        update={
            "banked": {
                found["a"]: [donor],
                found["b"]: [donor.model_copy(update={"similarity": 1.0})],
            }
        }
    )


def test_what_the_bank_holds_itself_is_not_measured(bank, tmp_path):
    entry = held(bank)
    report = share(own(), tmp_path, bank)
    task = tuned_tiny.convolutions()["b"]
    lines = {line.task: line for line in report.tasks}
    line = lines[task.info.name]
    assert (line.status, line.donor, line.donor_rank) == ("known", line.donors[0], 1)
    assert (line.trials, line.valid, line.default_ms) == (0, 0, None)
    assert line.best_ms == pytest.approx(entry.best_ms)
    known, first, *_ = report.rounds
    assert (known.name, known.tasks, known.trials) == ("known", 1, 0)
    assert first.tasks == 1
    # The log has the very schedule, with the time it had.
    (ours,) = best_trials(read_database(tmp_path / "share0"), task.mod, 8)
    searched = best_trials(read_database(tuned_tiny.tuned()), task.mod, 8)
    theirs = next(record for record in searched if sampling(record.trace))
    assert float(ours.run_secs[0]) * 1e3 == pytest.approx(entry.best_ms)
    assert tvm_ffi.structural_equal(applied(ours, task.mod), applied(theirs, task.mod))
    # A run that is begun again takes it from the journal.
    assert share(own(), tmp_path, bank).tasks == report.tasks


@pytest.mark.parametrize(("measured", "default_times"), [(True, 1.0), (False, 0.9)])
def test_what_the_bank_holds_may_be_measured_again(bank, tmp_path, measured, default_times):
    # Because it was asked for; because its default schedule was faster than what can be taken.
    held(bank, default_times)
    options = OPTIONS.model_copy(update={"measure_known": measured})
    report = share(own(), tmp_path, bank, options=options)
    line = {each.task: each for each in report.tasks}[names()["b"]]
    assert line.status != "known"
    assert line.trials == 2
    assert report.rounds[0].name == "first donors"


def test_with_everything_known_nothing_is_measured(bank, tmp_path):
    held(bank)
    only = own().model_copy(update={"banked": {names()["b"]: own().banked[names()["b"]]}})
    (tmp_path / "tune").mkdir()
    with tuned_tiny.in_this_process():
        tune(
            tuned_tiny.tasks(),
            only,
            tuned_tiny.fingerprint(),
            tuned_tiny.OPTIONS,
            tmp_path / "tune-journals",
            tmp_path / "tune",
        )
    report = share(only, tmp_path, bank, tmp_path / "tune")
    assert (report.trials, [line.status for line in report.tasks]) == (0, ["known"])
    (point,) = Curve.read(tmp_path / "share0").points
    weight = tuned_tiny.convolutions()["b"].info.weight
    assert point.estimated_latency_ms == pytest.approx(weight * report.tasks[0].best_ms)


def test_a_selection_from_a_bank_needs_it(tmp_path):
    with pytest.raises(InputError, match="from a bank, and none is given"):
        share(banked(), tmp_path)


def test_with_everything_in_the_bank_nothing_is_tuned(bank, tmp_path):
    (tmp_path / "tune").mkdir()
    with tuned_tiny.in_this_process():
        tuned = tune(
            tuned_tiny.tasks(),
            banked(),
            tuned_tiny.fingerprint(),
            tuned_tiny.OPTIONS,
            tmp_path / "tune-journals",
            tmp_path / "tune",
        )
    assert (tuned.tasks, tuned.trials, tuned.stopped_by) == ([], 0, "nothing_to_tune")
    report = share(banked(), tmp_path, bank, tmp_path / "tune")
    assert [line.trials for line in report.tasks] == [distinct(bank, n.task) for n in report.tasks]
    points = Curve.read(tmp_path / "share0").points
    assert points[-1].trials == report.trials
    assert all(point.estimated_latency_ms > 0 for point in points)


def lonely() -> Selection:
    """The convolution ``a`` alone."""
    found, made = names(), tuned_tiny.selection()
    cluster = made.clusters[0].model_copy(update={"members": [found["b"], found["c"]]})
    return made.model_copy(
        update={
            "clusters": [cluster],
            "alone": [found["a"]],
        }
    )


def test_a_task_alone_has_more_of_what_is_drawn_measured(tmp_path):
    found = names()
    report = share(lonely(), tmp_path, options=OPTIONS.model_copy(update={"draws": 4}))
    lines = {line.task: line for line in report.tasks}
    assert (lines[found["a"]].donors, lines[found["a"]].offered) == ([], 0)
    assert lines[found["c"]].offered == 2
    # A task without a donor measures more of the schedules drawn by rule.
    assert OPTIONS.trials_per_task < lines[found["a"]].trials <= 3 * OPTIONS.trials_per_task
    assert lines[found["a"]].status in ("drawn", "default")


def test_a_task_that_gets_nothing_keeps_its_default(tmp_path):
    report = share(lonely(), tmp_path)
    line = {each.task: each for each in report.tasks}[names()["a"]]
    assert (line.offered, line.trials, line.donor, line.status) == (0, 0, None, "default")


def test_a_heavy_task_that_gets_nothing_is_searched(tmp_path):
    rules = SharingRules(searched_gain=-1.0, searched_batch=4, searched_trials=4)
    report = share(lonely(), tmp_path, rules=rules)
    line = {each.task: each for each in report.tasks}[names()["a"]]
    assert (line.offered, line.trials, line.donor) == (0, 4, None)
    assert line.status in ("searched", "default")
    (held,) = [each for each in report.rounds if each.name == SEARCHED]
    assert held.trials >= 4
    # A run that is begun again takes it from the journal.
    assert share(lonely(), tmp_path, rules=rules) == report


def test_a_crash_while_learning_costs_its_task_alone(tmp_path, monkeypatch):
    class CrashError(Exception):
        """What a segmentation fault would be in a child."""

    learned = EvolutionarySearch.learn
    (victim,) = [tuned_tiny.convolutions()["a"].mod]

    def learn(self: EvolutionarySearch, *given: object) -> None:
        if tvm_ffi.structural_equal(self.space.module, victim):
            raise CrashError
        learned(self, *given)

    monkeypatch.setattr(EvolutionarySearch, "learn", learn)
    with pytest.raises(CrashError):
        share(tuned_tiny.selection(), tmp_path)
    (path,) = (tmp_path / "journals").glob("*.jsonl")
    events = [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]
    # Both were measured and noted before anything was learned from either.
    noted = [event["task"] for event in events if event.get("round")]
    assert set(noted) == {names()["a"], names()["c"]}
    assert [e["task"] for e in events if e["kind"] == "start"][-1] == names()["a"]
