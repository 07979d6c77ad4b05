"""A bank built of real tuning logs: what is kept, what is refused, what is nearest."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fewtune.artifacts import LogInfo, TaskInfo
from fewtune.bank.bank import Bank, build_bank
from fewtune.errors import InputError
from fewtune.options import BankOptions, SelectOptions
from fewtune.schedule.space.design_space import sampling
from fewtune.schedule.space.transfer import Donation
from fewtune.selection.select import select_tasks
from fewtune.similarity.similarity import design_space
from fewtune.storage.database import best_trials, merge, read_database
from tests import tuned_tiny
from tests.made.banks import entry, made_bank, task_info, tiles


def made(logs: Path, directory: Path, **options: int) -> Bank:
    directory.mkdir()
    return build_bank(BankOptions(logs=str(logs), **options), tuned_tiny.fingerprint(), directory)


def two_logs(root: Path, names: tuple[str, str]) -> Path:
    """The tuned log and its best two, in folders that are made in the order of the names."""
    for name in names:
        (root / name).mkdir(parents=True)
        merge([tuned_tiny.tuned()], root / name, best=2 if name == "some/best" else None)
    return root


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A bank of both logs."""
    root = tmp_path_factory.mktemp("bank")
    report = made(two_logs(root / "logs", ("all", "some/best")), root / "built")
    return report, root / "built"


def ranked() -> list[tuple[Donation, float]]:
    """The donations of the one tuned task's log, fastest first."""
    module = tuned_tiny.convolutions()["b"].mod
    records = best_trials(read_database(tuned_tiny.tuned()), module, 1000)
    return [
        (Donation.of(record.trace), float(np.median([float(s) for s in record.run_secs])))
        for record in records
        if sampling(record.trace)
    ]


@pytest.mark.slow
def test_equal_logs_give_equal_bytes(built, tmp_path):
    again = two_logs(tmp_path / "elsewhere", ("some/best", "all"))
    made(again, tmp_path / "again")
    names = sorted(path.name for path in built[1].iterdir())
    assert names == [Bank.file_name, LogInfo.file_name]
    for name in names:
        assert (built[1] / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.slow
def test_a_bank_holds_what_was_searched(built):
    report, directory = built
    # Of the dependents, only their default schedules were measured: nothing to move.
    (only,) = report.entries
    task = tuned_tiny.convolutions()["b"]
    assert [source.name for source in report.sources] == ["all", "some/best"]
    assert (only.workload, only.operator) == (task.info.workload, task.info.operator)
    assert only.flops == task.info.flops
    assert only.origins == ["all", "some/best"]
    bank = Bank.read(directory)
    assert bank.entries[0].space == design_space(task.mod, tuned_tiny.target())
    assert bank.donations(only.workload) == list(dict(ranked()))
    assert only.best_ms == pytest.approx(ranked()[0][1] * 1e3)


@pytest.mark.slow
def test_distilling_keeps_the_best(tmp_path):
    logs = two_logs(tmp_path / "logs", ("all", "some/best"))
    (only,) = made(logs, tmp_path / "few", best=2).entries
    assert Bank.read(tmp_path / "few").donations(only.workload) == list(dict(ranked()))[:2]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match=r"missing is no folder: give a folder of tuning logs"):
        made(tmp_path / "missing", tmp_path / "bank")


@pytest.mark.slow
def test_a_tuned_task_is_its_own_donor(built):
    selection, matrix = select_tasks(
        tuned_tiny.tasks(),
        SelectOptions(min_share=0, min_similarity=1.0),
        target=tuned_tiny.target(),
        model="tiny",
        strategy="selective",
        bank=Bank.read(built[1]),
    )
    task = tuned_tiny.convolutions()["b"]
    (donor,) = selection.banked[task.info.name]
    assert (donor.workload, donor.origin) == (task.info.workload, "all, some/best")
    assert donor.similarity == 1.0
    assert list(selection.banked) == [task.info.name]
    named = {*selection.representatives, *selection.dependents, *selection.set_aside}
    assert task.info.name not in named
    assert task.info.name not in matrix.names


def test_the_nearest_come_in_a_stated_order():
    bank = made_bank(
        entry("far", tiles(13, 11)),
        entry("near", tiles(64, 32), flops=2e6),
        entry("twice", tiles(64, 64), flops=2e6),
        entry("same_b", tiles(64, 64), flops=1e6),
        entry("same_a", tiles(64, 64), flops=1e6),
        entry("other", tiles(64, 64), operator="dense"),
        entry("own", tiles(64, 32), flops=9e6),
    )

    def nearest(task: TaskInfo, min_similarity: float = 0.6, most: int = 9) -> list[str]:
        found = bank.nearest(task, tiles(64, 64), min_similarity, most)
        return [it.workload for it in found]

    task = task_info("task", workload="new", flops=1e6)
    assert nearest(task) == ["same_a", "same_b", "twice", "near", "own"]
    assert nearest(task, most=2) == ["same_a", "same_b"]
    assert nearest(task, min_similarity=1.0) == ["same_a", "same_b", "twice"]
    own = task_info("task", workload="own", flops=1e6)
    assert nearest(own, most=2) == ["own", "same_a"]
    assert nearest(own, min_similarity=1.0)[0] == "own"
    assert nearest(task_info("task", workload="new", operator="pool")) == []
    # 7 divisors of 64, 6 of them of 32: (1 * 6/7) ** 0.5.
    rates = {it.workload: it.similarity for it in bank.nearest(task, tiles(64, 64), 0.6, 9)}
    assert rates["near"] == pytest.approx((6 / 7) ** 0.5)


@pytest.mark.slow
def test_a_damaged_bank_is_named(built, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(built[1], damaged)
    bank = Bank.read(damaged)
    with pytest.raises(InputError, match="the bank holds no workload 0: run select_tasks again"):
        bank.donations("0")
    (damaged / Bank.file_name).write_text("{}")
    with pytest.raises(InputError, match="sources: Field required; run its stage again"):
        Bank.read(damaged)
