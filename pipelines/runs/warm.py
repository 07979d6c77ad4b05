"""The warm process of a run: it has TVM, DVC and the stages loaded, and forks each stage.

A new interpreter takes two to four seconds of a core to load TVM and DVC, eleven times in a run of
one model.

`dvc.yaml` knows nothing of it: the run's PATH begins with a folder whose ``python`` is
`fewtune.process.warm_python`. Without it the same commands start Python, and give the same files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fewtune.api import APART
from fewtune.process import warm
from stages.paths import Places

# Modules that DVC loads only when a stage runs.
_DVC = ("dvc.repo", "dvc.cli.parser", "dvc.commands.repro", "dvc.repo.reproduce", "dvc.stage.run")
_MODULE = re.compile(r"python -m ([\w.]+)")


@contextmanager
def warm_process(root: Path) -> Iterator[None]:
    """Keep a warm process for the stages at ``root`` while the block runs."""
    stages = _MODULE.findall(Places(root).pipeline.read_text())
    modules = dict.fromkeys(["dvc", *APART, *stages])
    with warm.warm_process(list(modules), {"dvc": _DVC}, root):
        yield
