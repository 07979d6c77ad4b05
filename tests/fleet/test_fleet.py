"""A fleet on loopback: two Dask workers tune a tiny network, and are killed meanwhile."""

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from fewtune.artifacts import Fingerprint, Selection
from fewtune.errors import InputError, MachineError
from fewtune.fleet.cluster import Cluster, fleet_fingerprint
from fewtune.fleet.device import on_fleet
from fewtune.fleet.worker import class_of
from fewtune.machine.fingerprint import FingerprintOptions
from fewtune.measure.device import device_of
from fewtune.options import ShareOptions, TuneOptions
from fewtune.sharing.share import share_schedules
from fewtune.storage.journal import Journal
from fewtune.tuning.job import TuneJob
from fewtune.tuning.tune import journal_header, run_session
from tests import tuned_tiny
from tests.fleet.fleet_cluster import cluster, worker_pids
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


def tuned_names() -> list[str]:
    return sorted(task.info.name for task in tuned_tiny.convolutions().values())


def tune_all(own: Fingerprint, journals: Path) -> list[dict]:
    """Tune the tiny network's four convolutions; return the journal's events."""
    tasks = list(tuned_tiny.convolutions().values())
    run_session(tasks, TuneJob(tuned_names(), OPTIONS), own, journals, run=on_fleet)
    return events_in(journals)


def events_in(journals: Path) -> list[dict]:
    """What stands in the one journal of a folder."""
    (path,) = journals.glob("*.jsonl")
    header = journal_header(
        Fingerprint.model_validate_json((journals / "own").read_text()),
        list(tuned_tiny.convolutions().values()),
        tuned_names(),
        OPTIONS,
        False,
    )
    journal = Journal(path, header)
    journal.close()
    return journal.events


def prepared(own: Fingerprint, folder: Path) -> Path:
    folder.mkdir()
    (folder / "own").write_text(own.model_dump_json())
    return folder


def check_whole(events: list[dict]) -> None:
    """Every task has its default and all its trials, and no schedule was measured twice."""
    assert events[-1]["kind"] == "finish"
    defaults = Counter(e["task"] for e in events if e["kind"] == "default")
    assert defaults == dict.fromkeys(tuned_names(), 1)
    trials = [
        (event["task"], str(trial["trace"]))
        for event in events
        if event["kind"] == "batch"
        for trial in event["trials"]
    ]
    assert len(trials) == len(set(trials)) == OPTIONS.trials_per_task * len(tuned_names())


def when(journals: Path, batches: int, act: threading.Event | None = None) -> None:
    """Wait until so many batches are in the journal."""

    def held() -> bool:
        texts = [path.read_text() for path in journals.glob("*.jsonl")]
        return sum(text.count('"kind":"batch"') for text in texts) >= batches

    until(held, _LIMIT_S)


def test_a_killed_dask_worker_is_replaced_and_nothing_is_repeated(at, tmp_path):
    own = fingerprint(at)
    assert device_of(own).runner is on_fleet
    assert device_of(own).can.locks_itself
    assert device_of(tuned_tiny.fingerprint()).runner is None
    journals = prepared(own, tmp_path / "journals")
    pids = sorted(worker_pids(at).values())

    def kill() -> None:
        when(journals, 1)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    events = tune_all(own, journals)
    killer.join()
    check_whole(events)


CLIENT = """
import sys
from pathlib import Path
from tests.fleet import test_fleet as t
from fewtune.artifacts import Fingerprint
folder = Path(sys.argv[1])
t.tune_all(Fingerprint.model_validate_json((folder / "own").read_text()), folder)
"""


def test_a_killed_client_goes_on_where_it_was(at, tmp_path):
    own = fingerprint(at)
    journals = prepared(own, tmp_path / "journals")
    tuned_tiny.convolutions()
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(journals)], stdout=subprocess.DEVNULL
    )
    try:
        when(journals, 2)
    finally:
        client.kill()
        client.wait()
    events = tune_all(own, journals)
    check_whole(events)


def test_sharing_runs_on_one_machine(at, tmp_path):
    own = fingerprint(at)
    selection: Selection = tuned_tiny.selection()
    from fewtune.tuning.tune import tune

    for name in ("tune", "share"):
        (tmp_path / name).mkdir()
    journals, options = tmp_path / "journals", tuned_tiny.OPTIONS
    tuned = tune(
        tuned_tiny.tasks(), selection, own, options, journals, tmp_path / "tune", run=on_fleet
    )
    report = share_schedules(
        tuned_tiny.tasks(),
        selection,
        tuned_tiny.predicted(),
        tmp_path / "tune",
        own,
        ShareOptions(trials_per_task=2, budget_s=tuned.tuning_s + 10),
        journals,
        tmp_path / "share",
        model_directory=tuned_tiny.extracted(),
        run=on_fleet,
    )
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


def test_an_address_where_nobody_is_is_told():
    with pytest.raises(MachineError, match="no Dask scheduler answers at tcp://127.0.0.1:1 "):
        fingerprint("tcp://127.0.0.1:1")
    with pytest.raises(InputError, match="local:2"):
        fingerprint("local:none")
    # No certificate is set here.
    with pytest.raises(MachineError, match="is reached by TLS, and no certificate is set"):
        fingerprint("tls://127.0.0.1:1")


def test_an_interrupted_machine_is_replaced_and_prints_nothing(capfd):
    with Cluster("local:1", FingerprintOptions()) as own:
        ((address, process),) = own.client.run(os.getpid).items()
        os.kill(process, signal.SIGINT)
        until(lambda: own.addresses() - {address})
    assert "Traceback" not in capfd.readouterr().err
