"""What a benchmark owes its user: nothing else measures beside it, and bad input is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fewtune.errors import FewtuneError
from fewtune.machine.device_lock import device_lock


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold this machine's processor, waiting while another run measures on it.

    Parameters
    ----------
    name : str
        Of the benchmark, as it is shown to others that wait for it.

    Raises
    ------
    SystemExit
        As `one_line_errors`.
    """
    with one_line_errors(name), device_lock("cpu", f"benchmark {name}"):
        yield


@contextmanager
def one_line_errors(name: str) -> Iterator[None]:
    """End a benchmark in one line on an error that its user can mend.

    Parameters
    ----------
    name : str
        Of the benchmark.

    Raises
    ------
    SystemExit
        With that error's exit code.
    """
    try:
        yield
    except FewtuneError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
