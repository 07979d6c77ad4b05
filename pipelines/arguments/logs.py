"""Options of the commands for logs, banks and predictors: `log`, `bank`, `predictor`."""

from __future__ import annotations

import argparse

from pipelines.arguments.common import CODES, command_parser


def add_log(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune log`."""
    command = command_parser(
        commands,
        "log",
        "pipelines.commands.logs:log",
        help="merge tuning logs, or keep the best of one, for a later run to start from",
        description="Write the tuning records of one log or of several into another. A log is a "
        "folder with log.json and TVM's two database files. Logs of different machines, targets, "
        "thread counts, TVM versions or ways of measuring are refused.",
        epilog="examples:\n"
        "  fewtune log out/squeezenet/selective/share --best 5 --output logs/squeezenet\n"
        "  fewtune log out/*/full/share --output all\n"
        "\nWhat lies under logs/ (tune.start_from) is tried first by the next run.\n",
    )
    command.add_argument("logs", nargs="+", metavar="LOG", help="folder of a log")
    command.add_argument("--output", required=True, metavar="DIR", help="a folder to be made")
    command.add_argument(
        "--best", type=int, metavar="K", help="keep the K fastest of each workload (all)"
    )


def add_bank(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune bank`."""
    command = command_parser(
        commands,
        "bank",
        "pipelines.commands.logs:bank",
        help="hand tuned schedules to another machine of the same kind, as one file",
        description="Write the best schedules of the logs below bank/ into one file, or read such "
        "a file. A file of another machine, target, thread count, TVM version or way of measuring "
        "is refused.",
        epilog="examples:\n"
        "  fewtune bank export zoo.bank --licence CC0-1.0\n"
        "  fewtune bank import zoo.bank\n"
        "  fewtune run MODEL --set build_bank.selective.logs=bank\n\n" + CODES,
    )
    kinds = command.add_subparsers(dest="action", metavar="export|import", required=True)
    export = kinds.add_parser("export", help="write a file")
    export.add_argument("file", metavar="FILE", help="to be made")
    export.add_argument("--logs", default="bank", metavar="DIR", help="folder of logs (bank)")
    export.add_argument(
        "--licence", default="not stated", metavar="NOTE", help="what it may be used for"
    )
    export.add_argument("--best", type=int, default=8, metavar="K", help="schedules a workload (8)")
    taken = kinds.add_parser("import", help="read a file into bank/NAME")
    taken.add_argument("file", metavar="FILE")
    taken.add_argument("--name", metavar="NAME", help="folder below bank/; the file's name")


def add_predictor(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune predictor`."""
    command = command_parser(
        commands,
        "predictor",
        "pipelines.commands.logs:predictor",
        help="train, list or describe predictors, which rate schedules before they are made",
        description="A predictor is trained on models that were tuned in full, or on samples kept "
        "of such.",
        epilog="examples:\n"
        "  fewtune predictor train practice_{1..16} --output predictors/mine --keep mine.npz\n"
        "  fewtune predictor list\n"
        "  fewtune predictor info epyc\n"
        "  fewtune run MODEL --set tune.predictor=predictors/mine\n\n" + CODES,
    )
    kinds = command.add_subparsers(dest="action", metavar="train|list|info", required=True)
    train = kinds.add_parser("train", help="train one")
    train.add_argument("models", nargs="*", metavar="MODEL", help="tuned in full here")
    train.add_argument(
        "--samples", action="append", default=[], metavar="FILE", help="kept earlier; repeatable"
    )
    train.add_argument("--keep", metavar="FILE", help="keep what is learnt from, as .npz")
    train.add_argument(
        "--most-trials",
        type=int,
        metavar="N",
        help="learn from so many trials, of the most usual shapes first",
    )
    train.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="MODEL",
        help="learn nothing from its shapes, and print how good the predictor is for it",
    )
    train.add_argument(
        "--output", required=True, metavar="PATH", help="without ending, such as predictors/mine"
    )
    kinds.add_parser("list", help="those that come with fewtune, and those of predictors/")
    info = kinds.add_parser("info", help="what one was trained on")
    info.add_argument("name", metavar="NAME", help="of the list, or a path without its ending")
