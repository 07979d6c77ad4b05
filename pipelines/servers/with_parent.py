"""A module run in a process that ends with the one that started it, also where that was killed.

``python -m fewtune.pipelines.servers.with_parent PARENT MODULE ...``; the thread that starts it has
to outlive it.
"""

from __future__ import annotations

import runpy
import sys

from fewtune.process.child_python import end_with_parent, is_child_of


def _main(parent: int, module: str) -> None:
    end_with_parent()
    # It may have been killed before.
    if is_child_of(parent):
        del sys.argv[1:3]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
