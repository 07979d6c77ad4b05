"""The `fewtune` command: what can be asked, and with which code it ends.

Kept light, so that help comes at once: what a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import NoReturn

from fewtune import __version__
from fewtune.errors import MACHINES_FAULT, FewtuneError, MachineError, disk_line
from pipelines.arguments import logs, models, results, run, services
from pipelines.arguments.common import CODES

INTERRUPTED, TERMINATED = 130, 143


def parser() -> argparse.ArgumentParser:
    """Everything that can be asked."""
    top = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="fewtune",
        description="Selective tuning for TVM: tune few tasks of a model, serve them all.",
        epilog="examples:\n"
        "  fewtune run                              the models that params.yaml lists\n"
        "  fewtune run model.onnx --trials 32       your own model\n"
        "  fewtune run squeezenet --all             with full tuning to compare with\n"
        "  fewtune compare squeezenet               recorded results side by side\n"
        "\n`fewtune COMMAND --help` says more.\n\n" + CODES,
    )
    top.add_argument("--version", action="version", version=f"fewtune {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        models.add_check,
        models.add_add,
        models.add_zoo,
        run.add_run,
        run.add_record,
        results.add_report,
        results.add_compare,
        results.add_watch,
        logs.add_log,
        logs.add_bank,
        logs.add_predictor,
        models.add_compile,
        services.add_worker,
        services.add_serve,
        services.add_ui,
    ):
        add(commands)
    return top


class _TerminatedError(BaseException):
    """SIGTERM, told like an interruption: on the way out all that was started is ended."""


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    code : int
        As the help lists them.
    """
    try:
        options = parser().parse_args(arguments)
        signal.signal(signal.SIGTERM, _terminated)
        from fewtune.util.temporary import own_temporary_folder

        with own_temporary_folder():
            return int(resolve_name(options.function)(options))
    except FewtuneError as error:
        print(f"fewtune: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("fewtune: interrupted; the same command goes on", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED if arguments is not None else _leave(INTERRUPTED)
    except _TerminatedError:
        print("fewtune: ended; the same command goes on", file=sys.stderr, flush=True)
        return TERMINATED if arguments is not None else _leave(TERMINATED)
    except BrokenPipeError:
        from pipelines.commands.show import close_output

        close_output()
        return 0
    except OSError as error:
        if error.errno not in MACHINES_FAULT and error.filename is None:
            raise
        print(f"fewtune: {disk_line(error)}", file=sys.stderr, flush=True)
        return MachineError.exit_code


def _leave(code: int) -> NoReturn:
    """End at once: Python would wait for threads of MLflow or Prefect that are at something."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
