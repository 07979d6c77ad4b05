"""What `fewtune worker`, `serve` and `ui` do: they run until they are interrupted."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from fewtune.errors import InputError, MachineError, masked
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import say
from fewtune.pipelines.servers.server import LOCALHOST, check_port, new_secret, server
from fewtune.process.child_python import ending
from fewtune.stages.params import read_yaml
from fewtune.stages.paths import Places


def worker(options: argparse.Namespace) -> int:
    """Become a Dask worker of a fleet."""
    from fewtune.fleet.worker import command
    from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint

    if "://" not in options.scheduler:
        raise InputError(f"{options.scheduler!r} is no address: give tcp://HOST:8786 or tls://...")
    own = detect_fingerprint(FingerprintOptions())
    say(f"{own.device}, {own.threads} threads, for {options.scheduler}; Ctrl-C to end it")
    arguments = command(options.scheduler, options.options)
    os.execv(arguments[0], arguments)


def ui(options: argparse.Namespace) -> int:
    """Serve MLflow's page."""
    root = find_root()
    from fewtune.pipelines.checkout import environment  # noqa: F401  (before MLflow, which reads it)

    uri = os.environ["MLFLOW_TRACKING_URI"]
    local = not uri.startswith(("http://", "https://"))
    if local:
        check_port(options.port)
    from fewtune.pipelines.records.tracking import Store

    path = Store(root).page()
    if not local:
        print(f"MLflow: {masked(uri.rstrip('/') + path)}")
        return 0
    os.chdir(root)
    url, secret = f"http://{LOCALHOST}:{options.port}", new_secret()
    command = ["fewtune.pipelines.servers.mlflow_server", "--port", str(options.port)]
    with server(root, "mlflow", command, f"{url}{path}", f"{url}/health", secret) as process:
        raise MachineError(f"MLflow's server ended with {process.wait()}")


def serve(options: argparse.Namespace) -> int:
    """Serve the deployments of prefect.yaml, one run at a time: two would wait for each other."""
    root = find_root()
    # Prefect loads the flow from there.
    os.chdir(root)
    # It gives the server a secret, before an address is set.
    from fewtune.pipelines.checkout import environment  # noqa: F401

    given = os.environ.get("PREFECT_API_URL")
    if not given:
        check_port(options.port)
    url = f"http://{LOCALHOST}:{options.port}"
    # Prefect reads it when it is imported, also in each scheduled run.
    os.environ["PREFECT_API_URL"] = given or f"{url}/api"
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = url
    from prefect import serve as serve_until_interrupted
    from prefect.flows import load_flow_from_entrypoint
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    if options.cron is not None:
        _check_cron(options.cron)
    found, deployments = read_deployments(root), list[Any]()
    for each in found:
        schedules = each.get("schedules") or []
        if options.cron is not None and schedules:
            schedules = [{"cron": options.cron}]
        flow: Any = load_flow_from_entrypoint(each["entrypoint"])
        kind = EntrypointType.FILE_PATH if ":" in each["entrypoint"] else EntrypointType.MODULE_PATH
        deployment = flow.to_deployment(
            each["name"],
            schedules=[Cron(it["cron"], timezone=it.get("timezone")) for it in schedules],
            parameters=each.get("parameters") or {},
            description=each.get("description"),
            tags=each.get("tags"),
            entrypoint_type=kind,
        )
        deployments.append(deployment)
        for schedule in schedules:
            print(f"{flow.name}/{each['name']} runs at {schedule['cron']}", flush=True)
    is_over = threading.Event()
    with contextlib.ExitStack() as stack:
        if not given:
            secret = os.environ["PREFECT_SERVER_API_AUTH_STRING"]
            command = ["prefect", "server", "start", "--host", LOCALHOST, "--port"]
            command.append(str(options.port))
            own = server(root, "prefect", command, url, f"{url}/api/health", secret)
            process = stack.enter_context(own)
            threading.Thread(target=_end_with, args=(process, is_over), daemon=True).start()
            stack.callback(is_over.set)
        serve_until_interrupted(*deployments, limit=1)
    return 0


def _end_with(process: subprocess.Popen[bytes], is_over: threading.Event) -> None:
    """End this process if the server ends before it: Prefect would ask it for minutes."""
    code = process.wait()
    if is_over.is_set():
        return
    fault = MachineError(f"Prefect's server {ending(code)}: run `fewtune serve` again")
    print(f"fewtune: {fault}", file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            child.terminate()
    os._exit(fault.exit_code)


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
        try:
            _ = each["name"], each["entrypoint"]
            for schedule in each.get("schedules") or []:
                _check_cron(schedule["cron"])
        except (KeyError, TypeError, AttributeError) as fault:
            raise InputError(f"{path}: deployment {each!r} lacks {fault}") from None
    return found


def _check_cron(cron: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        raise InputError(f"schedule {cron!r} is no cron expression, such as '0 2 * * *'") from None
