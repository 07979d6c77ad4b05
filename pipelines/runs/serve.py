"""The deployments of prefect.yaml, served from one process: a schedule without a work pool."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fewtune.errors import InputError, MachineError
from pipelines.checkout import environment
from pipelines.runs import with_parent
from stages.params import read_yaml
from stages.paths import Places

STARTUP_S = 180


def serve_deployments(root: Path, cron: str | None, port: int) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    root : Path
        The checkout, which must be the current folder: Prefect loads the flow from there.
    cron : str, optional
        Replaces the schedules of the file.
    port : int
        Port of the Prefect server that is started if the environment names none.

    Raises
    ------
    InputError
        If the file or the schedule cannot be used.
    MachineError
        If the server does not come up.
    """
    given = os.environ.get("PREFECT_API_URL")
    url = f"http://{environment.LOCALHOST}:{port}"
    # Prefect reads it when it is imported, also in each scheduled run.
    os.environ["PREFECT_API_URL"] = given or f"{url}/api"
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = url
    from prefect import serve
    from prefect.flows import load_flow_from_entrypoint
    from prefect.schedules import Cron

    found = read_deployments(root)
    if cron is not None:
        _check_cron(cron)
    with contextlib.nullcontext() if given else _server(root, url, port):
        deployments = []
        for each in found:
            schedules = each.get("schedules") or []
            if cron is not None:
                schedules = [{"cron": cron}] if schedules else []
            flow = load_flow_from_entrypoint(each["entrypoint"])
            deployments.append(
                flow.to_deployment(
                    each["name"],
                    schedules=[Cron(it["cron"], timezone=it.get("timezone")) for it in schedules],
                    parameters=each.get("parameters") or {},
                    description=each.get("description"),
                    tags=each.get("tags"),
                )
            )
            for schedule in schedules:
                print(f"{flow.name}/{each['name']} runs at {schedule['cron']}", flush=True)
        # One run at a time: two would wait for each other's lock.
        serve(*deployments, limit=1)


def read_deployments(root: Path) -> list[dict[str, Any]]:
    """The deployments of prefect.yaml.

    Raises
    ------
    InputError
        If there are none, or one lacks what serving needs.
    """
    path = Places(root).pipeline.with_name("prefect.yaml")
    found = read_yaml(path).get("deployments")
    if not isinstance(found, list) or not found:
        raise InputError(f"{path}: deployments is {found!r}: give a list of deployments")
    for each in found:
        for key in ("name", "entrypoint"):
            if not isinstance(each, dict) or not each.get(key):
                raise InputError(f"{path}: a deployment has no {key}")
        for schedule in each.get("schedules") or []:
            if not schedule.get("cron"):
                raise InputError(f"{path}: {each['name']}: a schedule has no cron")
            _check_cron(schedule["cron"])
    return found


def _check_cron(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        raise InputError(f"schedule {cron!r} is no cron expression, such as '0 2 * * *'") from None


@contextlib.contextmanager
def _server(root: Path, url: str, port: int) -> Iterator[None]:
    """A Prefect server at ``url`` while the block runs."""
    log = Places(root).scratch / "logs" / "prefect-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    address = ["--host", environment.LOCALHOST, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            with_parent.command("prefect", ["server", "start", *address]),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _hand_over_secret(root)
        print(f"starting Prefect's server, its page: {url}", flush=True)
        _wait_for(f"{url}/api/health", process, log)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _hand_over_secret(root: Path) -> None:
    """Write the secret for page and workers to a file that only this user can read."""
    file = Places(root).scratch / "prefect-auth"
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(os.environ["PREFECT_API_AUTH_STRING"] + "\n")
    print(f"its page asks for what stands in {file}; workers take it as PREFECT_API_AUTH_STRING")


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise MachineError(f"Prefect's server did not come up: see {log}")
