"""The sessions below a Dask worker: they answer, die, hang, and wait for their device."""

import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fewtune.fleet import worker
from fewtune.fleet.worker import Answer, carry_out, sessions
from fewtune.machine.device_lock import LOCK_FOLDER, device_lock
from fewtune.options import TuneOptions
from fewtune.tuning.tune import TuneJob
from tests import tuned_tiny
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def lock_folder(tmp_path_factory):
    """Locks of this test only; the sessions of this process end with it."""
    folder = tmp_path_factory.mktemp("locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOCK_FOLDER, str(folder))
        yield folder
    while sessions:
        sessions.popitem()[1].kill()
    worker._warmed().close()
    worker._warmed.cache_clear()


def whole() -> dict[str, Any]:
    """A session that measures two candidates."""
    task = tuned_tiny.convolutions()["c"]
    options = TuneOptions(trials_per_task=2, batch_size=2, least_gain=0.0)
    job = tuned_tiny.job_of(TuneJob, [task], Path(), options)
    return {"job": pickle.dumps(job), "model": None, "events": []}


def test_a_session_answers_batch_by_batch_and_ends():
    answer = carry_out("one", whole())
    assert (answer.kind, answer.text) == ("batch", "")
    assert [event["kind"] for event in answer.events] == ["start", "round"]
    kinds = []
    while answer.kind == "batch":
        answer = carry_out("one", None)
        kinds += [event["kind"] for event in answer.events]
    assert answer.kind == "done"
    assert kinds[-1] == "finish"
    assert carry_out("one", None) == Answer("lacks", [])


def test_a_session_that_dies_says_of_what():
    carry_out("dies", whole())
    os.kill(sessions["dies"].process.pid, signal.SIGKILL)
    answer = carry_out("dies", None)
    assert answer.kind == "died"
    assert "killed by signal 9 (SIGKILL), perhaps for want of memory" in answer.text
    assert "dies" not in sessions


def test_a_session_that_hangs_is_killed():
    answer = carry_out("hangs", whole(), silence_s=0.0)
    assert answer.kind == "died"
    assert "no answer" in answer.text
    assert "hangs" not in sessions


def test_two_workers_of_a_host_take_turns():
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(carry_out("turns", whole())))
    with device_lock("cpu", "another worker of this host"):
        asking.start()
        # It waits for the lock, which this process holds.
        until(lambda: "turns" in sessions)
        asking.join(0.5)
        assert not answers
    asking.join()
    assert answers[0].kind == "batch"
