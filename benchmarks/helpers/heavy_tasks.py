"""Tasks of registered models that benchmarks tune."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fewtune.artifacts import Fingerprint
from fewtune.model.import_model import import_model, read_lowered
from fewtune.model.import_options import ImportOptions
from fewtune.runtime.target import target_from_json
from fewtune.task.extract import Task, extract_tasks

MODELS = Path(__file__).parents[2] / "models"


def model_tasks(name: str, fingerprint: Fingerprint, count: int) -> list[Task]:
    """The tasks of a model that take most of its time, by operations, of distinct forms first."""
    target = target_from_json(fingerprint.target)
    with tempfile.TemporaryDirectory() as scratch:
        import_model(name, MODELS, target, fingerprint.threads, ImportOptions(), Path(scratch))
        tasks = extract_tasks(read_lowered(Path(scratch)))
    heavy = [task for task in tasks if task.info.flops > 1e6 and "conv2d" in task.info.name]
    heavy.sort(key=lambda task: (-task.info.flops * task.info.weight, task.info.name))
    return heavy[:count]
