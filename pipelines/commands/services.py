"""What `fewtune worker`, `serve` and `ui` do: they run until they are interrupted."""

from __future__ import annotations

import argparse
import os
import sys

from fewtune.errors import InputError
from pipelines.arguments.values import check_port
from pipelines.checkout.project import find_root
from pipelines.commands.show import say


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


def serve(options: argparse.Namespace) -> int:
    """Serve the deployments of prefect.yaml."""
    root = find_root()
    os.chdir(root)
    from pipelines.runs.serve import serve_deployments

    check_port(options.port, unless="PREFECT_API_URL")
    serve_deployments(root, options.cron, options.port)
    return 0


def ui(options: argparse.Namespace) -> int:
    """Serve MLflow's page."""
    root = find_root()
    from pipelines.checkout import environment

    uri = os.environ["MLFLOW_TRACKING_URI"]
    local = not uri.startswith(("http://", "https://"))
    if local:
        check_port(options.port)
    from pipelines.records.mlflow_view import address
    from pipelines.records.tracking import Store

    experiment_id = Store(root).experiment_id
    if local:
        page = address(f"http://{environment.LOCALHOST}:{options.port}", experiment_id)
        print(f"MLflow, in about 15 s, until Ctrl-C: {page}", flush=True)
        os.chdir(root)
        server = ["--host", environment.LOCALHOST, "--port", str(options.port), "--workers", "1"]
        command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri, *server]
        os.execv(sys.executable, command)
    print(f"MLflow: {address(uri, experiment_id)}")
    return 0
