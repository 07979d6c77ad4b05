"""Options of the commands that show results: `report`, `compare`, `watch`."""

from __future__ import annotations

import argparse

from pipelines.arguments.common import CODES, command_parser


def add_report(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune report`."""
    command = command_parser(
        commands,
        "report",
        "pipelines.commands.results:report",
        help="show the results on disk",
        description="Show the results table again, from what the stages wrote.",
        epilog="examples:\n"
        "  fewtune report\n"
        "  fewtune report squeezenet --kernels\n"
        "  fewtune report --markdown > results.md\n",
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    command.add_argument("--kernels", action="store_true", help="and each result's kernels")
    command.add_argument("--markdown", action="store_true", help="as markdown")


def add_compare(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune compare`."""
    command = command_parser(
        commands,
        "compare",
        "pipelines.commands.results:compare",
        help="show recorded results side by side, from MLflow",
        description="Compare two or more results recorded in MLflow, with their conditions. A "
        "model stands for the latest result of each of its strategies.",
        epilog="examples:\n"
        "  fewtune compare squeezenet                   selective against full\n"
        "  fewtune compare squeezenet-selective 4f2a91c0\n",
    )
    command.add_argument(
        "results", nargs="+", metavar="MODEL|RUN", help="a model, a run's name, id or its beginning"
    )


def add_watch(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune watch`."""
    command = command_parser(
        commands,
        "watch",
        "pipelines.commands.results:watch",
        help="compare the latest results with those before, and fail if one is slower",
        description="Put the latest recorded result of each model beside the one before it, of the "
        "same machine and strategy, with the noise of both. Ends with code 6 if one is slower by "
        "more than the noise, and says which stage, settings, versions and kernels changed. Writes "
        "a page of all results over time.",
        epilog="examples:\n"
        "  fewtune run --force && fewtune watch\n"
        "  fewtune watch squeezenet --page fleet\n"
        "  fewtune watch --fleet                     every machine in MLflow\n\n" + CODES,
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    command.add_argument(
        "--fleet", action="store_true", help="results of every machine, not of this one only"
    )
    command.add_argument(
        "--page", metavar="DIR", help="folder for fleet.md and fleet.png (default .fewtune/fleet)"
    )
