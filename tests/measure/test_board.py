"""Boards on loopback: a tracker, two servers, candidates built here and measured there."""

import json

import psutil
import pytest

from fewtune.artifacts import Fingerprint
from fewtune.errors import MachineError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.board import (
    ANSWER_S,
    Board,
    BoardAddress,
    BoardModel,
    ask_tracker,
    reserve,
)
from fewtune.measure.measurer import module_specs
from fewtune.options import ShareOptions
from fewtune.schedule.defaults import default_schedule
from fewtune.sharing.share import share_schedules
from fewtune.tuning.tune import tune
from fewtune.verify.taps import Observable
from tests import tuned_tiny
from tests.rpc_boards import boards
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def at():
    with boards(2) as address:
        yield address


def fingerprint(at: str) -> Fingerprint:
    mcpu = json.loads(tuned_tiny.fingerprint().target)["mcpu"]
    target = json.dumps({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    return detect_fingerprint(FingerprintOptions(device=at, target=target))


def test_an_unknown_key_is_told_at_once(at, monkeypatch):
    assert ANSWER_S < 5
    monkeypatch.setattr(ask_tracker, "__defaults__", (0.2,))
    with pytest.raises(MachineError, match=r"no server of key 'nobody'.*its keys: loopback"):
        fingerprint(f"{at.rpartition('/')[0]}/nobody")


def test_no_tracker_is_told_at_once():
    with pytest.raises(MachineError, match="no TVM tracker answers at 127.0.0.1:1 "):
        fingerprint("rpc://127.0.0.1:1/key")


def test_what_kernels_write_on_a_board_is_not_looked_at():
    assert not isinstance(BoardModel.__new__(BoardModel), Observable)


def test_both_boards_measure_at_once_and_are_let_go(at):
    board = Board(fingerprint(at))
    found = tuned_tiny.convolutions()
    modules = [default_schedule(found[key].mod, board.target).mod for key in "abcd"]
    specs = [module_specs(found[key].mod) for key in "abcd"]
    with board.open() as pool:
        assert pool.devices == 2
        measurer = board.measurer(pool)
        outcomes = measurer.measure(modules, specs, [None] * 4)
        assert all(outcome.run_s for outcome in outcomes)
        with pytest.raises(MachineError, match="taken"):
            ask_tracker(BoardAddress.of(at), wait_s=0.2)
        folder = pool.folder
    assert not folder.exists()
    # Free again: a server takes the next session.
    assert reserve(BoardAddress.of(at)) is not None


def test_a_model_is_tuned_and_shared_on_boards(at, tmp_path):
    own = fingerprint(at)
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    journals, tune_directory = tmp_path / "journals", tmp_path / "tune"
    for folder in (tune_directory, tmp_path / "share"):
        folder.mkdir()
    model = (tuned_tiny.tasks(), tuned_tiny.selection())
    tuned = tune(*model, own, tuned_tiny.OPTIONS, journals, tune_directory)
    shared = share_schedules(
        *model,
        tuned_tiny.predicted(),
        tune_directory,
        own,
        ShareOptions(trials_per_task=2, budget_s=tuned.tuning_s + 10),
        journals,
        tmp_path / "share",
        tmp_path / "bank",
        tuned_tiny.extracted(),
    )
    # On a busy machine, each of six candidates may be slower than the default schedule.
    (line,) = tuned.tasks
    assert line.status in ("tuned", "slower_than_default")
    assert line.trials == 6
    # A model runs on no board.
    assert {each.name for each in shared.rounds} == {"alone"}
    assert any(line.best_ms for line in shared.tasks)
    assert json.loads((tmp_path / "share" / "log.json").read_text())["machine"] == own.device
    until(lambda: {it.pid for it in psutil.Process().children(recursive=True)} <= before)
