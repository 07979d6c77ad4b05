"""The installed package in a user's repository, beside a pipeline and packages of the user's.

A tiny model's run of all stages is shared by the tests; each leaves it up to date.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    Curve,
    Fingerprint,
    Metrics,
    ShareReport,
    TuneReport,
)
from fewtune.pipelines.runs.run_plan import DVC
from fewtune.process.warm import warm_process
from tests import tiny_models
from tests.made.repository import Repository, hashes, ran

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
MODEL, STRATEGIES = "tiny", ("selective", "full")
BRIEF = {"rounds": 3, "wait_s": 0, "copies": 1}
BUDGETS = {
    "tune.trials_per_task": 4,
    "share_schedules.trials_per_task": 2,
    "share_schedules.least_gain": 0.005,
    **{f"{stage}.{key}": BRIEF[key] for stage in ("benchmark", "compare") for key in BRIEF},
    "compare.processes": 1,
}
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
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(source / made.stdout.split()[-1]) as wheel:
        wheel.extractall(packages)
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.fixture(scope="module")
def users(python, tmp_path_factory):
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
    repository.run("dvc", "init", "--quiet")
    repository.run("dvc", "repro", "--quiet")
    repository.commit()
    return repository


@pytest.fixture(scope="module")
def repository(users):
    """The user's repository, from the folder of the project in it that has run."""
    assert "`fewtune init` makes one" in users.fewtune("report", code=2).stderr
    assert "is a pipeline of your own" in users.fewtune("init", ".", code=2).stderr
    written = users.fewtune("init").stdout
    assert {"fewtune/dvc.yaml", "fewtune/params.yaml"} <= set(written.split())
    changed = users.run("git", "status", "--porcelain").stdout.split()
    assert set(changed) == {"??", ".dvc/plots/", "fewtune/"}
    assert "MODEL.onnx` registers one" in users.fewtune("run", code=2).stderr
    project = users.within("fewtune")
    for key_path, value in BUDGETS.items():
        project.set(key_path, value)
    given = tiny_models.write_model(tiny_models.smallest_model(), users.root)
    strategies = [word for strategy in STRATEGIES for word in ("--strategy", strategy)]
    users.fewtune("run", str(given), "--name", MODEL, *strategies)
    users.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        with warm_process([*DVC, "fewtune.stages.fingerprint"], project.root):
            project.keep_warm()
            yield project


def test_a_project_lives_beside_the_users_pipeline(users, repository):
    # One process: MLflow takes seconds to load.
    both = "from fewtune.pipelines.cli import main; main(['watch']); main(['report', '--html'])"
    told = users.run(users.python, "-c", both).stdout
    assert MODEL in told
    assert told.endswith("fewtune/.fewtune/report/tiny.html\n")
    before = hashes(repository)
    ran_again = ran(users.repro("dvc.yaml", "fewtune/dvc.yaml"))
    assert ran_again == {"fewtune/dvc.yaml:fingerprint"}
    assert hashes(repository) == before
    assert users.run("git", "status", "--porcelain").stdout == ""


def test_results_are_whole_and_readable(repository):
    places = repository.places
    fingerprint = Fingerprint.read(places.fingerprint)
    for strategy in STRATEGIES:
        tuned = TuneReport.read(places.tuned(MODEL, strategy))
        shared = ShareReport.read(places.shared(MODEL, strategy))
        assert tuned.trials + shared.trials > 0
        report = BenchmarkReport.read(places.benchmarked(MODEL, strategy))
        assert report.conditions.fingerprint == fingerprint
        assert report.max_relative_error < 1e-3
        assert Metrics.read(places.benchmarked(MODEL, strategy)).latency_ms > 0
    assert Comparison.read(places.compared(MODEL)).achieved_perf_pct > 0
    assert not list(places.out.rglob(".*")), "scratch folders were left behind"


def test_stages_write_only_what_dvc_knows(repository):
    lock = YAML(typ="safe").load((repository.root / "dvc.lock").read_text())
    outputs = [Path(out["path"]) for stage in lock["stages"].values() for out in stage["outs"]]
    declared = {repository.root / out for out in outputs}
    for path in repository.places.out.rglob("*"):
        assert path.is_dir() or declared & {path, *path.parents}, path


def test_metrics_and_plots_are_what_a_dvc_user_expects(repository):
    shown = json.loads(repository.run("dvc", "metrics", "show", "--json").stdout)
    files = {Path(path).name: file["data"] for path, file in shown[""]["data"].items()}
    for strategy in STRATEGIES:
        assert files[f"{strategy}.json"]["latency_ms"] > 0
    assert {"used_time_pct", "achieved_perf_pct"} <= files["compare.json"].keys()
    columns = {name for figures in files.values() for name in figures}
    # A result that other tests have disturbed says so.
    assert len(columns - {"disturbed"}) == 12
    assert len(files) == 3
    template = str(Path("..", ".dvc", "plots", "offline.html"))
    repository.run("dvc", "plots", "show", "--out", "plots", "--html-template", template)
    page = (repository.root / "plots" / "index.html").read_text()
    shutil.rmtree(repository.root / "plots")
    assert '<script src="http' not in page
    for strategy in STRATEGIES:
        # Where nothing was expected to be gained, no round was held.
        curve = Curve.read(repository.places.shared(MODEL, strategy))
        title = f'"text": "{MODEL} ({strategy}), tuning and sharing"'
        assert (title in page) == bool(curve.points)
        assert f'"text": "{MODEL} ({strategy}), kernels"' in page
        assert f"out_{MODEL}_{strategy}_select_similarity.png" in page
    assert f'"text": "{MODEL}, tuning"' in page
    assert '"field": "strategy"' in page
    assert page.count('"strategy": "full"') >= len(curve.points)


@pytest.fixture(scope="module")
def clone(repository, tmp_path_factory):
    """A clone that has pulled everything from a remote that the first one pushed to."""
    remote = tmp_path_factory.mktemp("remote")
    repository.run("dvc", "remote", "add", "--default", "shared", str(remote))
    repository.commit()
    repository.run("dvc", "push")
    root = tmp_path_factory.mktemp("clones") / "second"
    repository.run("git", "clone", "--quiet", str(repository.root.parent), str(root))
    clone = Repository(root / "fewtune", tmp_path_factory.mktemp("scratch"))
    clone.keep_warm()
    assert not (clone.root / "models" / MODEL / "model.onnx").exists()
    clone.run("dvc", "pull")
    return clone


def test_a_second_clone_has_nothing_to_do_after_a_pull(repository, clone):
    assert hashes(clone) == hashes(repository)
    assert ran(clone.repro()) == {"fingerprint"}
    assert hashes(clone) == hashes(repository)
    assert clone.run("git", "status", "--porcelain").stdout == ""
    shown = clone.run("dvc", "metrics", "show", "--json")
    assert shown.stderr == ""
    assert len(json.loads(shown.stdout)[""]["data"]) == 3


LOAD = """
import sys
import mlflow.pyfunc
import numpy as np
import onnxruntime
mlflow.set_tracking_uri("sqlite:///mlflow.db")
# Measured beside other tests, a result may be a disturbed one, which becomes no champion.
mlflow.MlflowClient().set_registered_model_alias("tiny", "champion", "1")
before = set(sys.modules)
model = mlflow.pyfunc.load_model("models:/tiny@champion")
random = np.random.default_rng(0)
given = {t.name: random.random(t.shape, t.type) for t in model.metadata.signature.inputs}
found = model.predict(given)
assert not {"tvm", "pydantic_core", "fewtune.pipelines"} & set(sys.modules) - before
session = onnxruntime.InferenceSession("models/tiny/model.onnx")
assert list(found) == [output.name for output in session.get_outputs()]
for actual, wanted in zip(found.values(), session.run(None, given)):
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
"""


def test_real_results_are_recorded_and_loaded(repository):
    # This project's code is not on the path.
    repository.run("env", "-u", "PYTHONPATH", sys.executable, "-c", LOAD)


def test_an_experiment_changes_its_parameter_and_its_figures_alone(clone):
    figures, params = clone.places.figures(MODEL, "selective"), clone.places.params
    figures_before, before = figures.read_text(), params.read_text().splitlines()
    target = f"benchmark@{MODEL}-selective"
    clone.run("dvc", "exp", "run", "--set-param", "benchmark.seed=1", target)
    lines = zip(before, params.read_text().splitlines(), strict=True)
    assert [new for old, new in lines if new != old] == ["  seed: 1"]
    assert figures.read_text() != figures_before
