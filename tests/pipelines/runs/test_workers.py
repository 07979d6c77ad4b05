"""`prefect deploy --all` from one clone; a worker runs the flow in a clone of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from mlflow import MlflowClient

from fewtune.pipelines.records.tracking import make_whole
from tests import small_pipeline
from tests.made import results as made
from tests.made.prefect_api import ask
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[3]
PATIENCE_S = 400


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment of those who know a Prefect server."""
    home = tmp_path_factory.mktemp("prefect")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_", "FEWTUNE_"))
    }
    port = str(free_port())
    kept |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)]),
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", port],
            env=kept,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = f"http://127.0.0.1:{port}/api"
        until(lambda: _answers(f"{address}/health"), PATIENCE_S, pause_s=0.2)
        yield {**kept, "PREFECT_API_URL": address}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def _prefect(root: Path, environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_worker_runs_the_flow_in_a_clone_of_its_own(environment, tmp_path):
    """Not in the one from which it was deployed; both know the same servers."""
    first = small_pipeline.make(tmp_path / "first")
    ask(environment, "work_pools/", {"name": "shared", "type": "process"})
    described = (PROJECT / "prefect.yaml").read_text().replace("name: local", "name: shared")
    (first / "prefect.yaml").write_text(described)
    _git(first, "add", "--all")
    _git(first, "commit", "-qm", "pipeline")
    second = tmp_path / "second"
    _git(tmp_path, "clone", "-q", str(first), str(second))
    # Its steps copy made results into place.
    made.lay_ready(second)
    made.lay_libraries(second)
    tracking = f"sqlite:///{tmp_path}/mlflow.db"
    make_whole(tmp_path / "mlflow.db")
    _prefect(first, environment, "deploy", "--all")
    own = {"FEWTUNE_CHECKOUT": str(second), "MLFLOW_TRACKING_URI": tracking}
    worker = subprocess.Popen(
        [sys.executable, "-m", "prefect", "worker", "start", "--pool", "shared", "--limit", "1"],
        cwd=tmp_path,
        env={**environment, **own, "PREFECT_WORKER_QUERY_SECONDS": "1"},
        stdout=(tmp_path / "worker.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        run = _start(environment, "full")
        assert _ended(environment, run) == "COMPLETED", (tmp_path / "worker.log").read_text()
        query = {"flow_runs": {"id": {"any_": [run]}}}
        tasks = ask(environment, "task_runs/filter", query)
        assert "search@good-full" in {each["name"] for each in tasks}
        client = MlflowClient(tracking)
        (experiment,) = [each for each in client.search_experiments() if each.name == "fewtune"]
        recorded = client.search_runs([experiment.experiment_id])
        assert "good-full" in {run.info.run_name for run in recorded}
    finally:
        worker.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


def _start(environment: dict[str, str], strategy: str) -> str:
    """Start a flow run of one strategy; gives its id."""
    found = ask(environment, "deployments/name/selective-tuning/on-demand")
    given = {"parameters": {"models": ["good"], "strategies": [strategy]}}
    path = f"deployments/{found['id']}/create_flow_run"
    return str(ask(environment, path, given)["id"])


def _ended(environment: dict[str, str], run: str) -> str:
    """The state that a flow run ends in."""
    ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

    def state() -> str:
        found = str(ask(environment, f"flow_runs/{run}")["state_type"])
        return found if found in ends else ""

    return until(state, PATIENCE_S, pause_s=0.5)


# Again, it replaces what it made. Prefect takes seconds to load.
TWICE = """\
import runpy, sys
del sys.argv[0]
for _ in range(2):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_failed_night_is_posted(environment, tmp_path):
    example = PROJECT / "examples" / "notify_on_regression.py"
    subprocess.run(
        [sys.executable, "-c", TWICE, str(example), "http://127.0.0.1:9/hook"],
        env=environment,
        check=True,
        timeout=PATIENCE_S,
    )
    listed = ask(environment, "automations/filter", {})
    assert [each["name"] for each in listed] == ["fewtune-regression"]
