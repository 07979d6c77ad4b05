"""`prefect deploy --all` from one clone; a worker runs the flow in its own, whichever that is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import small_pipeline
from tests.ports import free_port

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[3]
PATIENCE_S = 400
ENTRY = "pipelines/flow.py:selective_tuning"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A Prefect server, and the environment of those who know it."""
    home = tmp_path_factory.mktemp("prefect")
    port = free_port()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_", "FEWTUNE_"))
    }
    scripts = str(Path(sys.executable).parent)
    kept |= {
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, sys.path)]),
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1"],
        env=kept,
        stdout=(home / "server.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _answers(f"http://127.0.0.1:{port}/api/health")
        yield {**kept, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"no answer from {address}")


def _clone(root: Path) -> Path:
    small_pipeline.make(root)
    (root / "pipelines").symlink_to(PROJECT / "pipelines")
    shutil.copy(PROJECT / "prefect.yaml", root)
    return root


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


def test_a_worker_runs_in_its_own_clone(environment: dict[str, str], tmp_path: Path) -> None:
    first, second = _clone(tmp_path / "first"), _clone(tmp_path / "second")
    _prefect(first, environment, "work-pool", "create", "local", "--type", "process")
    _prefect(first, environment, "deploy", "--all")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    for clone in (second, first):
        _prefect(
            first, environment, "deployment", "run", "selective-tuning/on-demand",
            "--param", 'models=["good"]', "--param", 'recording=false',
        )  # fmt: skip
        # It is not started in its clone, as a service would not be.
        worker = subprocess.run(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "local", "--run-once"],
            cwd=tmp_path,
            env={**environment, "FEWTUNE_CHECKOUT": str(clone), "MLFLOW_TRACKING_URI": store},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        told = worker.stdout + worker.stderr
        assert worker.returncode == 0, told
        assert (clone / "out" / "good" / "selective" / "benchmark").is_dir(), told
        others = {first, second} - {clone}
        if clone == second:
            assert not any((other / "out").exists() for other in others), "it ran elsewhere"


def test_a_failed_night_is_posted(environment: dict[str, str], tmp_path: Path) -> None:
    example = PROJECT / "examples" / "notify_on_regression.py"
    for _ in range(2):  # again, it replaces what it made
        subprocess.run(
            [sys.executable, str(example), "http://127.0.0.1:9/hook"],
            env=environment,
            check=True,
            timeout=PATIENCE_S,
        )
    listed = _prefect(tmp_path, environment, "automation", "ls")
    assert listed.count("fewtune-regression") == 1
