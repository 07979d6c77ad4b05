"""What the options of several commands have in common."""

from __future__ import annotations

import argparse

CODES = """\
exit codes:
  0    all results are up to date
  1    a model failed for more than one reason, or by a fault of this software
  2    bad input: a model, a name, a shape, a parameter, an option
  3    this machine lacks something: a device, a compiler, a free port, disk space
  4    a compiled model disagrees with onnxruntime
  5    a tuning journal is damaged or belongs to another machine
  6    a model became slower than it was on this machine (`fewtune watch`)
  130  interrupted; the same command goes on where it stopped
  143  terminated; likewise
"""


def command_parser(
    commands: argparse._SubParsersAction, name: str, function: str, **settings: str
) -> argparse.ArgumentParser:
    """Add a command.

    Parameters
    ----------
    commands : argparse._SubParsersAction
    name : str
    function : str
        What it does, as ``module:function``: called with the options, gives an exit code. It is
        imported when the command runs, so that help is fast.
    settings : str
        ``help``, ``description`` and ``epilog``.
    """
    command = commands.add_parser(
        name, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
    )
    command.set_defaults(function=function)
    return command


def shape_options(command: argparse.ArgumentParser) -> None:
    """Add what an input with dynamic dimensions needs."""
    command.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input with dynamic dimensions; may be given several times",
    )
    command.add_argument(
        "--dimension",
        action="append",
        default=[],
        metavar="NAME=1",
        help="size of a named dynamic dimension, in every input; may be given several times",
    )


def input_options(command: argparse.ArgumentParser) -> None:
    """Add values and samples of inputs."""
    command.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="INPUT=16000",
        help="bind an input to a value: a number, a list or an .npy file; may be given several "
        "times",
    )
    command.add_argument(
        "--inputs",
        metavar="FILE.npz",
        help="sample inputs, an array for each input; outputs are compared on them, too",
    )
