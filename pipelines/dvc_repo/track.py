"""Models' files under DVC, so that another clone can pull them.

Loading DVC takes two seconds. A command that needs it for nothing else starts a process that loads
it while the model is checked and written. Models with seeded weights have no files but their
registration, which is in git.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fewtune.process.contexts import without_gc
from stages.paths import Places

_PATIENCE_S = 600


def model_files(root: Path, models: Iterable[str]) -> list[str]:
    """The files of the models' folders without their registrations, as paths in the checkout."""
    return [
        str(path.relative_to(root))
        for registration in map(Places(root).registration, models)
        for path in sorted(registration.parent.iterdir())
        if path != registration and path.suffix != ".dvc" and not path.name.startswith(".")
    ]


def track(root: Path, files: Sequence[str]) -> str:
    """Put ``files`` under DVC, as `dvc add` does, if the checkout is a DVC repository.

    Returns
    -------
    error : str
        Why that was not possible, and what to do, in one line; empty if all is well.
    """
    if not files or not _is_repository(root):
        return ""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with _quiet(), Repo(str(root)) as repo:
            repo.add([str(root / file) for file in files])
    except (DvcException, OSError, sqlite3.Error) as error:
        return _untracked(str(error), files)
    return ""


class Tracker:
    """`track` in a process of its own, which begins to load DVC immediately.

    Parameters
    ----------
    root : Path
        The checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None
        if _is_repository(root):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.dvc_repo.track"],
                cwd=root,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def track(self, files: Sequence[str]) -> str:
        """As the function."""
        if self._process is None or not files:
            return ""
        try:
            output, _ = self._process.communicate("\n".join(files), _PATIENCE_S)
        except subprocess.TimeoutExpired:
            return _untracked("DVC did not answer", files)
        if self._process.returncode == 0:
            return output.strip()
        return _untracked(f"its process ended with {self._process.returncode}", files)


def _is_repository(root: Path) -> bool:
    return (root / ".dvc").is_dir()


def _untracked(reason: str, files: Sequence[str]) -> str:
    return (
        f"the model is not under DVC ({' '.join(reason.split())}), so no other clone can pull it: "
        f"dvc add {' '.join(files)}"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without DVC's advice about git after each file."""
    logger = logging.getLogger("dvc")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _main() -> None:
    root = Path.cwd()
    with without_gc(for_good=True), contextlib.suppress(Exception), _quiet():
        from dvc.repo import Repo

        with Repo() as repo:
            # This loads what adding needs; the graph is read again when the files exist.
            _ = repo.index.outs_graph
    print(track(root, sys.stdin.read().splitlines()))


if __name__ == "__main__":
    _main()
