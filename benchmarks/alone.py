"""What a benchmark owes its user: nothing else measures beside it, and bad input is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fewtune.device_lock import device_lock
from fewtune.errors import FewtuneError


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold this machine's processor, waiting while another run measures on it.

    Parameters
    ----------
    name : str
        Of the benchmark, told to whoever waits for it.

    Raises
    ------
    SystemExit
        With the error's exit code, where it is one that the user can mend.
    """
    try:
        with device_lock("cpu", f"benchmark {name}"):
            yield
    except FewtuneError as error:
        print(f"{name}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
