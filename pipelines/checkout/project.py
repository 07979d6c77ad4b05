"""The checkout that a command works on, and the lock for writing to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.errors import InputError
from fewtune.stages.paths import Places

_held: set[Path] = set()
# Every stage's command has it. A pipeline of the user's own has not.
_MARK = "fewtune.stages"


def is_project(folder: Path) -> bool:
    """Whether the folder holds the pipeline's definition."""
    pipeline = Places(folder).pipeline
    return pipeline.is_file() and _MARK in pipeline.read_text(errors="replace")


def git_root(start: Path) -> Path | None:
    """The top folder of the git repository around ``start``."""
    return next((each for each in (start, *start.parents) if (each / ".git").exists()), None)


def find_root(start: Path | None = None) -> Path:
    """The nearest project from ``start`` upwards, or the one in its git repository's top folder.

    Raises
    ------
    InputError
        If there is none, or more than one to choose from.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if is_project(folder):
            return folder
    top = git_root(start)
    below = sorted(each for each in top.iterdir() if is_project(each)) if top else []
    if len(below) > 1:
        names = ", ".join(each.name for each in below)
        raise InputError(f"{top} has more than one fewtune project: change into one of {names}")
    if below:
        return below[0]
    raise InputError(
        f"{start} is not inside a fewtune project: `fewtune init` makes one in a git repository"
    )


def root_if_any() -> Path | None:
    """The project here, for what can be done without one."""
    try:
        return find_root()
    except InputError:
        return None


@contextmanager
def turn(root: Path, purpose: str, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the checkout at ``root``; wait, and print for what, while another run holds it.

    DVC's outputs and params.yaml have one writer. The lock is reentrant within a process: a command
    takes it before it changes params.yaml, and the flow that it starts takes it again.
    """
    root = root.resolve()
    if root in _held:
        yield
        return
    # Imported here: a command that only shows results needs no lock, and loads little.
    from fewtune.machine.device_lock import device_lock

    scratch = Places(root).scratch
    scratch.mkdir(exist_ok=True)
    with device_lock("this checkout", purpose, say, path=scratch / "run.lock"):
        _held.add(root)
        try:
            yield
        finally:
            _held.discard(root)
