"""Schedules that come from a bank, and from donors that are asked second."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewtune.artifacts import BankDonor, Selection, ShareReport
from fewtune.bank.build import build_bank
from fewtune.bank.report import BankOptions
from fewtune.errors import InputError
from fewtune.share import share_schedules
from fewtune.tuning import sharing
from fewtune.tuning.archive import merge
from fewtune.tuning.options import ShareOptions
from tests import tuned_tiny

OPTIONS = ShareOptions(top=2, draws=0, trials_per_task=2, refine_trials=0)


def share(selection: Selection, root: Path, bank: Path | None = None) -> ShareReport:
    (root / "share").mkdir()
    with tuned_tiny.in_this_process():
        return share_schedules(
            tuned_tiny.tasks(),
            selection,
            tuned_tiny.tuned(),
            tuned_tiny.fingerprint(),
            OPTIONS,
            root / "journals",
            root / "share",
            bank_directory=bank,
        )


def names() -> dict[str, str]:
    return {letter: task.info.name for letter, task in tuned_tiny.convolutions().items()}


@pytest.fixture
def bank(tmp_path: Path) -> Path:
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


def test_a_bank_serves_what_it_is_selected_for(bank: Path, tmp_path: Path) -> None:
    report = share(banked(), tmp_path, bank)
    assert {line.task for line in report.tasks} == {names()["a"], names()["c"]}
    workload = tuned_tiny.convolutions()["b"].info.workload
    for line in report.tasks:
        assert line.donors == [f"earlier:{workload[:8]}"]
        assert (line.offered, line.trials) == (2, 2)
        assert line.status in ("shared", "default")


def test_a_selection_from_a_bank_needs_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="from a bank, and none is given"):
        share(banked(), tmp_path)


def test_further_donors_are_asked_where_the_first_serve_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is a hundred times as fast as the best similar task: everything is far behind.
    monkeypatch.setattr(sharing, "FAR", 100.0)
    found = names()
    lonely = tuned_tiny.selection().model_copy(
        update={
            "clusters": [
                tuned_tiny.selection()
                .clusters[0]
                .model_copy(update={"members": [found["b"], found["c"]]})
            ],
            "alone": [found["a"]],
            "second_donors": {found["a"]: [found["b"]]},
        }
    )
    report = share(lonely, tmp_path)
    lines = {line.task: line for line in report.tasks}
    assert lines[found["a"]].donors == []
    assert lines[found["a"]].second_donors == [found["b"]]
    assert lines[found["a"]].offered == 2
    # Nobody else is left to ask for this one.
    assert lines[found["c"]].second_donors == []
    first, second, refinement = report.rounds
    assert (first.tasks, second.tasks, refinement.trials) == (2, 1, 0)
    assert second.trials == lines[found["a"]].trials
