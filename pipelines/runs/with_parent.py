"""A module run in a process that ends with the one that started it, also where that was killed."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from fewtune.process.child_python import end_with_parent, is_child_of


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """How this process starts ``module``; the thread that does so has to outlive it."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def _main(parent: int, module: str) -> None:
    end_with_parent()
    # It may have been killed before.
    if is_child_of(parent):
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
