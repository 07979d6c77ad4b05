"""A fleet on loopback: two Dask workers tune a tiny network, and are killed meanwhile."""

import gc
import os
import signal
import threading

import distributed
import pytest

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.fleet import device
from fewtune.fleet.device import Cluster, fleet_fingerprint, on_fleet
from fewtune.fleet.worker import class_of
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions, TuneOptions
from fewtune.tuning.job import measured
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny
from tests.fleet.fleet_cluster import cluster, worker_pids
from tests.made.sessions import events_of
from tests.waiting import until

pytestmark = pytest.mark.slow

OPTIONS = TuneOptions(trials_per_task=6, batch_size=3, least_gain=0.0)
_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def at():
    with cluster(2) as address:
        yield address


def fingerprint(at: str) -> Fingerprint:
    return fleet_fingerprint(FingerprintOptions(device=at))


def test_a_killed_dask_worker_is_replaced_and_nothing_is_repeated(at, tmp_path):
    own = fingerprint(at)
    assert device_of(own).runner is on_fleet
    assert device_of(own).can.locks_itself
    assert device_of(tuned_tiny.fingerprint()).runner is None
    tasks = list(tuned_tiny.convolutions().values())[:2]
    pids = sorted(worker_pids(at).values())

    def has_batch() -> bool:
        return any('"kind":"round"' in path.read_text() for path in tmp_path.glob("*.jsonl"))

    def kill() -> None:
        until(has_batch, _LIMIT_S)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    job = tuned_tiny.job_of(TuneJob, tasks, tmp_path, OPTIONS, fingerprint=own)
    measured(job)
    killer.join()
    (path,) = tmp_path.glob("*.jsonl")
    events = [event for event in events_of(path) if "kind" in event]
    assert events[-1]["kind"] == "finish"
    trials = [
        (task, str(trial["trace"]))
        for event in events
        for task, entries in event.get("by_task", {}).items()
        for trial in entries
    ]
    assert len(trials) == len(set(trials)) == OPTIONS.trials_per_task * len(tasks)


def test_sharing_runs_on_one_machine(at, tmp_path):
    options, own = ShareOptions(trials_per_task=2, least_gain=0.005), fingerprint(at)
    folders = (tmp_path / "share", tmp_path / "journals")
    report = tuned_tiny.share(*folders, options, tuned_tiny.extracted(), fingerprint=own)
    assert {each.name for each in report.rounds} == {"in the model"}
    assert all(line.best_ms for line in report.tasks)
    assert (tmp_path / "share" / "log.json").is_file()


def test_a_machine_of_another_class_is_named_and_left_out(at):
    own, said = class_of(fingerprint(at)), []
    with Cluster(at, FingerprintOptions(device=at), said.append) as fleet:
        assert len(fleet.machines(own)) == 2
        assert fleet.machines({**own, "TVM": "0.0.1"}) == []
        assert len(said) == 2
        assert "is of another class and takes no part: its TVM is" in said[0]
        # Once is enough, and nobody is waited for.
        with pytest.raises(MachineError, match="no machine of this one's class"):
            fleet.wait_for_machines({**own, "TVM": "0.0.1"})
        assert len(said) == 2


def test_an_address_where_nobody_is_is_told_and_nothing_is_left_to_close(monkeypatch):
    monkeypatch.setattr(device, "_CONNECT_S", 0.5)
    before = {id(each) for each in gc.get_objects() if isinstance(each, distributed.Client)}
    with pytest.raises(MachineError, match="no Dask scheduler answers at tcp://127.0.0.1:1 "):
        fingerprint("tcp://127.0.0.1:1")
    with pytest.raises(InputError, match="local:2"):
        fingerprint("local:none")
    # No certificate is set here.
    with pytest.raises(MachineError, match="is reached by TLS, and no certificate is set"):
        fingerprint("tls://127.0.0.1:1")
    clients = [each for each in gc.get_objects() if isinstance(each, distributed.Client)]
    left = [each for each in clients if id(each) not in before]
    assert all(each.status in ("closed", "newly-created") for each in left)


def test_an_interrupted_machine_is_replaced_and_prints_nothing(capfd):
    with Cluster("local:1", FingerprintOptions()) as own:
        ((address, process),) = own.client.run(os.getpid).items()
        os.kill(process, signal.SIGINT)
        until(lambda: own.addresses() - {address})
    assert "Traceback" not in capfd.readouterr().err
