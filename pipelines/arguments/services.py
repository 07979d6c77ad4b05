"""Options of the commands that run until they are interrupted: `worker`, `serve`, `ui`."""

from __future__ import annotations

import argparse

from pipelines.arguments.common import command_parser


def add_worker(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune worker`."""
    command = command_parser(
        commands,
        "worker",
        "pipelines.commands.services:worker",
        help="let this machine measure for a fleet",
        description="Run a Dask worker with one device, until interrupted. It runs whatever the "
        "scheduler's clients send: connect it to machines that you trust only. Further options go "
        "to Dask's worker.",
        epilog="examples:\n"
        "  dask scheduler --host 192.168.1.2                       on one machine\n"
        "  fewtune worker tcp://192.168.1.2:8786                   on each that measures\n"
        "  fewtune run squeezenet --cluster tcp://192.168.1.2:8786\n",
    )
    command.add_argument("scheduler", metavar="ADDRESS", help="tcp://HOST:8786, or tls://...")
    command.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="of `dask worker`, such as --tls-ca-file FILE --tls-cert FILE --tls-key FILE",
    )


def add_serve(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune serve`."""
    command = command_parser(
        commands,
        "serve",
        "pipelines.commands.services:serve",
        help="run on a schedule, without a work pool",
        description="Serve the deployments of prefect.yaml in this process until interrupted. "
        "Starts a Prefect server on 127.0.0.1, with its page, unless PREFECT_API_URL is set.",
        epilog="examples:\n"
        "  fewtune serve                     nightly, as prefect.yaml says\n"
        "  fewtune serve --cron '0 */6 * * *'\n",
    )
    command.add_argument("--cron", help="instead of the schedules of prefect.yaml")
    command.add_argument(
        "--port", type=int, default=4200, help="of the Prefect server (default 4200)"
    )


def add_ui(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune ui`."""
    command = command_parser(
        commands,
        "ui",
        "pipelines.commands.services:ui",
        help="open the recorded results: MLflow's page on 127.0.0.1",
        description="Serve MLflow's page on 127.0.0.1 until interrupted. Leave it off while "
        "something is measured.",
        epilog="examples:\n  fewtune ui\n  fewtune ui --port 5001\n",
    )
    command.add_argument("--port", type=int, default=5000, help="(default 5000)")
