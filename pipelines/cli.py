"""The `fewtune` command: its parser and its exit codes.

It loads little, so that help is fast: the modules of a command are imported when it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from types import FrameType
from typing import NoReturn

from fewtune import __version__
from fewtune.errors import (
    INTERRUPTED,
    MACHINES_FAULT,
    TERMINATED,
    FewtuneError,
    MachineError,
    disk_line,
)
from pipelines.arguments import logs, models, results, run, services
from pipelines.arguments.common import CODES


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
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
    """SIGTERM, raised like an interruption: all processes that were started end on the way out."""


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Note interrupts, and raise KeyboardInterrupt for any exception that one caused.

    onnxruntime turns an interrupt during its import into an ImportError.
    """
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    # A command that was started in the background ignores interrupts.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    try:
        yield seen
    except Exception as fault:
        if seen:
            raise KeyboardInterrupt from fault
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


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
        from fewtune.process.temporary import own_temporary_folder

        with _interrupts_noted() as interrupts, own_temporary_folder():
            code = int(resolve_name(options.function)(options))
            if code and interrupts:
                raise KeyboardInterrupt
            return code
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
    """End immediately: Python would wait for busy threads of MLflow or Prefect."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
