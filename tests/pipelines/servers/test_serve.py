"""`fewtune serve` in a process of its own: Prefect's scheduler plans the flow's runs."""

import base64
import json
import os
import signal
import urllib.error
import urllib.request

import psutil
import pytest

from tests import small_pipeline
from tests.made.command import started
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

PATIENCE_S = 300


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that serves the flow, which ends with it: its API, its secret's file."""
    root = small_pipeline.make(tmp_path_factory.mktemp("served"))
    (root / "prefect.yaml").write_text(
        "deployments:\n  - name: nightly\n"
        "    entrypoint: fewtune.pipelines.flow.selective_tuning\n"
        "    schedules: [{cron: '0 2 * * *'}]\n"
    )
    port = free_port()
    # How often it looks for new deployments.
    soon = {"PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1"}
    process = started(root, "serve", "--port", str(port), "--cron", "0 3 * * *", **soon)
    try:
        yield f"http://127.0.0.1:{port}/api", root / ".fewtune" / "prefect-auth"
        children = psutil.Process(process.pid).children()
        (server,) = (each for each in children if "prefect" in each.cmdline())
        server.kill()
        assert process.wait(PATIENCE_S) == 3
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    said = (root / "command.log").read_text()
    assert "runs at 0 3 * * *" in said
    assert "Prefect's server was killed" in said
    assert "Traceback" not in said


def ask(
    api: str,
    path: str,
    content: object = None,
    secret: str = "",
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, object, dict[str, str]]:
    """The status, content and headers of an answer."""
    body = None if content is None else json.dumps(content).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    if secret:
        given["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
    request = urllib.request.Request(f"{api}{path}", body, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, None, dict(error.headers)


def scheduled(api: str, secret: str) -> list[dict[str, object]]:
    """Flow runs that the scheduler has planned; none while the server starts."""
    wanted = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    try:
        # Reading needs no token against forged requests; asking by POST does.
        _, token, _ = ask(api, "/csrf-token?client=test", secret=secret)
        forgery = {"Prefect-Csrf-Token": token["token"], "Prefect-Csrf-Client": "test"}
        _, found, _ = ask(api, "/flow_runs/filter", wanted, secret, headers=forgery)
        return found or []
    except (urllib.error.URLError, OSError, TypeError):
        return []


@pytest.fixture(scope="module")
def planned(served):
    api, file = served
    # Where none is planned, .fewtune/logs/prefect-server.log says why.
    until(file.is_file, PATIENCE_S)
    return until(lambda: scheduled(api, file.read_text().strip()), PATIENCE_S, pause_s=0.1)


def test_the_scheduler_plans_runs_of_what_is_served(planned):
    assert all(run["auto_scheduled"] for run in planned)
    assert "T03:00:00" in str(planned[0]["expected_start_time"])


def test_nobody_else_may_change_what_runs(served, planned):
    api, file = served
    secret = file.read_text().strip()
    assert file.stat().st_mode & 0o077 == 0
    deployment = planned[0]["deployment_id"]
    shell = {"pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "id"}}]}
    attacks = [
        (f"/deployments/{deployment}", shell, "PATCH"),
        (f"/deployments/{deployment}/create_flow_run", {}, "POST"),
        ("/deployments/filter", {}, "POST"),
    ]
    for path, content, method in attacks:
        for known in ("", "fewtune:guess"):
            status, _, _ = ask(api, path, content, known, method)
            assert status in (401, 403), f"{method} {path} by somebody else"
        # A page that has the browser send the secret along cannot send the token.
        foreign = {"Origin": "http://evil.example", "Host": "evil.example"}
        status, _, headers = ask(api, path, content, secret, method, foreign)
        assert status == 403, f"{method} {path} from another origin"
        assert headers.get("access-control-allow-origin") not in ("*", "http://evil.example")
