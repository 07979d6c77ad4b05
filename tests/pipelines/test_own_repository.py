"""The installed package in a user's repository, beside a pipeline and packages of the user's."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests import tiny_models
from tests.made.repository import Repository, ran

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
MODEL, STRATEGY = "tiny", "oneshot"
OWN = "stages:\n  train:\n    cmd: python -m pipelines.train\n    outs: [weights.txt]\n"
TRAIN = "import pathlib; pathlib.Path('weights.txt').write_text('trained')\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A bare environment with the wheel; what fewtune needs comes from this one."""
    source = tmp_path_factory.mktemp("source")
    for path in PROJECT.iterdir():
        if path.name not in {".git", ".venv", "build", "out"}:
            copy = shutil.copytree if path.is_dir() else shutil.copy
            copy(path, source / path.name, **({"symlinks": True} if path.is_dir() else {}))
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    built = [sys.executable, "-c", build]
    made = subprocess.run(built, cwd=source, check=True, capture_output=True, text=True)
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.check_output(asked, text=True).strip())
    with zipfile.ZipFile(source / made.stdout.split()[-1]) as wheel:
        wheel.extractall(packages)
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="module")
def repository(python, tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    repository = Repository(root, tmp_path_factory.mktemp("scratch"))
    del repository.environment["PYTHONPATH"]
    del repository.environment["MLFLOW_TRACKING_URI"]
    repository.environment["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    repository.python = str(python)
    for package in ("pipelines", "stages"):
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    (root / "pipelines" / "train.py").write_text(TRAIN)
    (root / "dvc.yaml").write_text(OWN)
    repository.run("git", "init", "--quiet")
    repository.run(repository.python, "-m", "dvc", "init", "--quiet")
    repository.run(repository.python, "-m", "dvc", "repro", "--quiet")
    repository.commit()
    return repository


def test_a_project_lives_beside_the_users_pipeline(repository, tmp_path):
    def fewtune(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = (repository.python, "-m", "fewtune.pipelines.cli")
        return repository.run(*command, *arguments, code=code)

    assert "`fewtune init` makes one" in fewtune("report", code=2).stderr
    assert "is a pipeline of your own" in fewtune("init", ".", code=2).stderr
    written = fewtune("init").stdout
    assert {"fewtune/dvc.yaml", "fewtune/params.yaml"} <= set(written.split())
    changed = repository.run("git", "status", "--porcelain").stdout.split()
    assert set(changed) == {"??", ".dvc/plots/", "fewtune/"}
    assert "MODEL.onnx` registers one" in fewtune("run", code=2).stderr

    project = repository.root / "fewtune"
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("- selective\n", f"- {STRATEGY}\n"))
    given = tiny_models.write_model(tiny_models.tiny_convolutional_model(), repository.root)
    brief = ("rounds=3", "copies=1", "wait_s=0")
    quick = [word for value in brief for word in ("--set", f"benchmark.{value}")]
    fewtune("run", str(given), "--name", MODEL, "--strategy", STRATEGY, "--save", *quick)
    figures = json.loads((project / "metrics" / MODEL / f"{STRATEGY}.json").read_text())
    assert figures["latency_ms"] > 0
    assert MODEL in fewtune("watch").stdout
    assert "fewtune/.fewtune/report/tiny.html" in fewtune("report", "--html").stdout
    repository.commit()
    dvc = [repository.python, "-m", "dvc"]
    assert ran(repository.run(*dvc, "repro").stdout) == set()
    every = repository.run(*dvc, "repro", "fewtune/dvc.yaml").stdout
    assert ran(every) == {"fewtune/dvc.yaml:fingerprint"}
    assert repository.run("git", "status", "--porcelain").stdout == ""

    repository.run(*dvc, "remote", "add", "--default", "shared", str(tmp_path / "remote"))
    repository.commit()
    repository.run(*dvc, "push")
    repository.run("git", "clone", "--quiet", ".", str(tmp_path / "clone"))
    repository.run(*dvc, "--cd", str(tmp_path / "clone"), "pull")
    library = Path("fewtune", "out", MODEL, STRATEGY, "compile", "model.so")
    assert (tmp_path / "clone" / library).read_bytes() == (repository.root / library).read_bytes()
