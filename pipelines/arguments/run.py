"""Options of the commands that bring results up to date: `run`, `record`."""

from __future__ import annotations

import argparse

from pipelines.arguments.common import CODES, command_parser, input_options, shape_options


def add_run(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune run`."""
    command = command_parser(
        commands,
        "run",
        "pipelines.commands.run:run",
        help="bring results up to date: import, select, tune, share, compile, benchmark",
        description="Run the pipeline's stages through DVC and record the results in MLflow. What "
        "is up to date is not run again. With PREFECT_API_URL set, it is a flow run there.",
        epilog="examples:\n"
        "  fewtune run                                  models of params.yaml, selective\n"
        "  fewtune run squeezenet resnet50 --all        every strategy, and their comparison\n"
        "  fewtune run model.onnx --shape x=1,3,64,64   registers your model first\n"
        "  fewtune run voice.onnx --constant sr=16000   the same, an input bound to a value\n"
        "  fewtune run squeezenet --trials 32 --set share_schedules.top='5%'\n"
        "\nTrials, budget, target and --set are written into params.yaml, so that DVC knows\n"
        "them; they stay until they are changed again.\n\n" + CODES,
    )
    command.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a registered name or an .onnx file; the models of params.yaml unless given",
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="selective (the default), full, or oneshot (schedules are predicted, not measured); "
        "may be given several times",
    )
    which.add_argument(
        "--all", action="store_true", help="every strategy of params.yaml, and their comparison"
    )
    command.add_argument("--trials", type=int, metavar="N", help="tune.trials_per_task")
    command.add_argument("--budget", type=float, metavar="SECONDS", help="tune.budget_s")
    command.add_argument(
        "--target", metavar="T", help="fingerprint.target: auto, a kind such as cuda, or JSON"
    )
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="D",
        help="fingerprint.device: here, or a board behind a TVM tracker as rpc://HOST:9190/KEY, "
        "with --target as JSON",
    )
    where.add_argument(
        "--cluster",
        dest="device",
        metavar="C",
        help="the same, a fleet: tcp://HOST:8786 of a Dask scheduler, or local:2 for two workers "
        "here (they take turns)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="any other parameter; may be given several times",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="run every stage of these models again, also where nothing changed: after an update "
        "of fewtune, or a noisy hour",
    )
    shape_options(command)
    input_options(command)


def add_record(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune record`."""
    command = command_parser(
        commands,
        "record",
        "pipelines.commands.run:record",
        help="record results that `dvc repro` or `dvc exp run` made",
        description="Record every result on disk that is not in MLflow yet. `fewtune run` does so "
        "for the results that it brings up to date.",
        epilog="examples:\n  dvc repro && fewtune record\n  fewtune record squeezenet\n",
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")
