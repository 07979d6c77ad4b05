"""A repository of the project's own pipeline, run on a tiny model."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fewtune.pipelines.runs.run_plan import warm_process
from tests import tiny_models
from tests.made.repository import PROJECT, Repository, ran

MODEL = "tiny"
STRATEGIES = ("selective", "full")
BUDGETS = {
    "models": [MODEL],
    "strategies": list(STRATEGIES),
    "compared": [MODEL],
    "tune.trials_per_task": 4,
    "share_schedules.trials_per_task": 2,
    "share_schedules.least_gain": 0.03,
    "benchmark.rounds": 3,
    "benchmark.wait_s": 0,
    "benchmark.copies": 1,
    "compare.rounds": 3,
    "compare.wait_s": 0,
    "compare.copies": 1,
    "compare.processes": 1,
}
ALL = {
    "fingerprint",
    f"import_model@{MODEL}",
    f"extract_tasks@{MODEL}",
    f"compare@{MODEL}",
    *(f"build_bank@{strategy}" for strategy in STRATEGIES),
    *(
        f"{stage}@{MODEL}-{strategy}"
        for stage in (
            "predict",
            "select_tasks",
            "tune",
            "share_schedules",
            "compile",
            "benchmark",
        )
        for strategy in STRATEGIES
    ),
}


@contextmanager
def tiny_pipeline(root: Path, scratch: Path) -> Iterator[Repository]:
    """A repository in ``root`` in which every stage has run, on a tiny model.

    The stages are forks of a warm process, as in `fewtune run`; those that `dvc repro` starts on
    its own give the same files (`tests/pipelines/test_maltreated.py`).
    """
    repository = Repository(root, scratch)
    for name in ("dvc.yaml", "params.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(PROJECT / name, root)
    shutil.copytree(
        PROJECT / "stages", root / "stages", ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in ("bank", "logs", "predictors"):
        shutil.copytree(PROJECT / folder, root / folder)
    (root / "models" / "squeezenet").mkdir(parents=True)
    shutil.copy(PROJECT / "models/squeezenet/model.yaml", root / "models" / "squeezenet")
    repository.run("git", "init", "--quiet", "--initial-branch", "main")
    repository.run("dvc", "init", "--quiet")
    shutil.copy(PROJECT / ".dvc" / "config", root / ".dvc" / "config")
    shutil.copytree(PROJECT / ".dvc" / "plots", root / ".dvc" / "plots", dirs_exist_ok=True)
    given = tiny_models.write_model(tiny_models.tiny_convolutional_model(), scratch)
    repository.fewtune("add", str(given), "--name", MODEL, "--no-check")
    for key_path, value in BUDGETS.items():
        repository.set(key_path, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        with warm_process(root):
            repository.keep_warm()
            assert ran(repository.repro()) == ALL
            repository.commit()
            yield repository
