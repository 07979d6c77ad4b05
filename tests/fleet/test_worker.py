"""The station below a Dask worker: it answers, dies, hangs, and waits for its device."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewtune.fleet import worker
from fewtune.fleet.worker import carry_out, command
from fewtune.machine.device_lock import LOCK_FOLDER, device_lock
from fewtune.options import TuneOptions
from fewtune.runtime.tvm import tvm
from fewtune.tuning.job import TuneJob
from tests import tuned_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def lock_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Locks of this test only; the station of this process ends with it."""
    folder = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCK_FOLDER, str(folder))
        yield folder
    if worker.station is not None:
        worker.station.kill()


def order(key: str) -> dict[str, Any]:
    task = tuned_tiny.convolutions()["c"]
    return {
        "key": key,
        "purpose": "a test",
        "fingerprint": tuned_tiny.fingerprint().model_dump(mode="json"),
        "tasks": [[task.info.model_dump(mode="json"), tvm.ir.save_json(task.mod)]],
        "job": TuneJob([task.info.name], TuneOptions()).as_json(),
        "events": [],
        "count": None,
        "what": "default",
        "of": [task.info.name],
        "room": 0,
    }


def test_what_nobody_fetched_is_given_again_and_not_measured_twice() -> None:
    kind, told, first = carry_out(order("one"))
    assert kind == "ok"
    assert [event["kind"] for event in first] == ["start", "default", "phases"]
    # The client was killed before it had the answer.
    fetch = {**order("one"), "what": "fetch", "of": []}
    assert carry_out(fetch) == ("ok", told, first)
    # It was killed when it had noted two of the three events.
    assert carry_out({**fetch, "events": first[:2]})[2] == first[2:]
    assert carry_out({**fetch, "events": first})[2] == []
    # Another run of the same task is measured anew.
    kind, _, other = carry_out(order("two"))
    assert kind == "ok"
    assert other[1]["elapsed_s"] != first[1]["elapsed_s"] or (
        other[1]["trial"]["run_s"] != first[1]["trial"]["run_s"]
    )


def test_a_short_order_goes_on_with_the_session_that_is_there() -> None:
    _, told, first = carry_out(order("short"))
    assert told["count"] == len(first)
    short = {
        key: value
        for key, value in order("short").items()
        if key not in ("tasks", "job", "events", "count")
    }
    duel = {**short, "what": "duel"}
    assert carry_out({**duel, "count": told["count"]}) == ("ok", told, [])
    # A client that knows something else, and one whose session is gone, have to say what they know.
    assert carry_out({**duel, "count": 1}) == ("ok", {"lacks": True}, [])
    assert carry_out({**duel, "key": "none", "count": 3}) == ("ok", {"lacks": True}, [])


def test_a_station_that_dies_says_of_what_and_another_one_starts() -> None:
    carry_out(order("dies"))
    assert worker.station is not None
    os.kill(worker.station.pid, signal.SIGKILL)
    assert carry_out(order("dies")) == ("died", "SIGKILL", [])
    assert carry_out(order("dies"))[0] == "ok"


def test_a_station_that_hangs_is_killed() -> None:
    kind, told, _ = carry_out(order("hangs"), limit_s=0.0)
    assert kind == "hung"
    assert "no answer" in told
    assert worker.station is None


def test_the_station_starts_with_the_dask_worker() -> None:
    started = command("tcp://host:8786", [])
    assert started[started.index("--preload") + 1] == worker.__name__
    worker.dask_setup()
    assert worker.station is not None
    pid = worker.station.pid
    worker.dask_setup()
    assert carry_out({"describe": {}})[0] == "ok"
    assert worker.station.pid == pid


def test_two_workers_of_a_host_take_turns() -> None:
    answers: list[tuple] = []
    asking = threading.Thread(target=lambda: answers.append(carry_out(order("turns"))))
    with device_lock("cpu", "another worker of this host"):
        asking.start()
        asking.join(1.0)
        assert not answers
    asking.join()
    assert answers[0][0] == "ok"


def test_a_worker_has_one_device() -> None:
    arguments = command("tcp://host:8786", ["--name", "left"])
    assert arguments[arguments.index("--resources") + 1] == "device=1"
    assert arguments[-2:] == ["--name", "left"]
