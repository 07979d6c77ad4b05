"""`fewtune serve` in a process of its own: Prefect's scheduler plans the flow's runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import small_pipeline

PROJECT = Path(__file__).parent.parent
PATIENCE_S = 90


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of the API of a server that serves the flow every minute."""
    root = small_pipeline.make(tmp_path)
    (root / "prefect.yaml").write_text(
        f"deployments:\n  - name: nightly\n"
        f"    entrypoint: {PROJECT}/pipelines/flow.py:selective_tuning\n"
        "    schedules: [{cron: '0 2 * * *'}]\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "MLFLOW_"))
    }
    command = [sys.executable, "-m", "pipelines.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--cron", "0 3 * * *"],
        cwd=root,
        env={**kept, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])},
        stdout=(root / "serve.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Whoever runs the tests in the background may have interrupts ignored from the start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    yield f"http://127.0.0.1:{port}/api"
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert b"runs at 0 3 * * *" in (root / "serve.log").read_bytes()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5)


def scheduled(api: str) -> list[dict[str, object]]:
    """Flow runs that the scheduler has planned; none while the server starts."""
    body = json.dumps({"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}).encode()
    request = urllib.request.Request(
        f"{api}/flow_runs/filter", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except (urllib.error.URLError, OSError):
        return []


def test_the_scheduler_plans_runs_of_what_is_served(served: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    planned: list[dict[str, object]] = []
    while not planned and time.monotonic() < deadline:
        time.sleep(1)
        planned = scheduled(served)
    assert planned, "no run was planned: see .fewtune/logs/prefect-server.log"
    assert all(run["auto_scheduled"] for run in planned)
    assert "T03:00:00" in str(planned[0]["expected_start_time"])
