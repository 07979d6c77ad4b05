"""The `fewtune` command.

It loads little, so that help is fast: the modules of a command are imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pkgutil import resolve_name

from fewtune.errors import INTERRUPTED, TERMINATED, MachineError
from fewtune.pipelines.arguments import parser
from fewtune.pipelines.commands.show import told
from fewtune.process.ending import exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    code : int
        As the help lists them.
    """
    options = parser().parse_args(arguments)
    with told(options):
        code = exit_code(lambda: _carried_out(options))
    if code in (INTERRUPTED, TERMINATED) and arguments is None:
        # Python would wait for busy threads of MLflow or Prefect.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)
    return code


def _carried_out(options: argparse.Namespace) -> int:
    try:
        return int(resolve_name(options.function)(options))
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "fewtune":
            raise
        extra = "fleet" if package in ("dask", "distributed") else "pipeline"
        raise MachineError(f"{package} is missing: pip install 'fewtune[{extra}]'") from None


if __name__ == "__main__":
    sys.exit(main())
