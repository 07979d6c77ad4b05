"""A real `dvc repro` of the project's own pipeline, on a tiny model, in a repository of its own.

One run of all stages is shared by the tests of this file; each leaves it up to date.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fewtune.artifacts import (
    BenchmarkReport,
    Comparison,
    Fingerprint,
    Metrics,
    ShareReport,
    TuneReport,
)
from tests.made.repository import Repository, hashes, ran
from tests.made.tiny_pipeline import MODEL, STRATEGIES, tiny_pipeline

pytestmark = pytest.mark.slow

METRICS = Path("metrics", MODEL)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folders = (tmp_path_factory.mktemp(name) for name in ("repository", "scratch"))
    with tiny_pipeline(*folders) as made:
        yield made


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


def test_a_second_run_does_nothing(repository):
    before = hashes(repository)
    assert ran(repository.repro()) == {"fingerprint"}
    assert hashes(repository) == before
    assert repository.changed() == {}


def test_metrics_and_plots_are_what_a_dvc_user_expects(repository):
    shown = json.loads(repository.run("dvc", "metrics", "show", "--json").stdout)
    files = shown[""]["data"]
    for strategy in STRATEGIES:
        figures = files[f"{METRICS}/{strategy}.json"]["data"]
        assert figures["latency_ms"] > 0
    assert {"used_time_pct", "achieved_perf_pct"} <= set(files[f"{METRICS}/compare.json"]["data"])
    columns = {name for file in files.values() for name in file["data"]}
    # A result that other tests have disturbed says so.
    assert len(columns - {"disturbed"}) == 12
    assert len(files) == 3
    template = str(Path(".dvc", "plots", "offline.html"))
    repository.run("dvc", "plots", "show", "--out", "plots", "--html-template", template)
    page = (repository.root / "plots" / "index.html").read_text()
    shutil.rmtree(repository.root / "plots")
    assert '<script src="http' not in page
    for strategy in STRATEGIES:
        for title in ("tuning and sharing", "kernels"):
            assert f'"text": "{MODEL} ({strategy}), {title}"' in page
        assert f"out_{MODEL}_{strategy}_select_similarity.png" in page
    assert f'"text": "{MODEL}, tuning"' in page
    assert '"field": "strategy"' in page
    assert page.count('"strategy": "full"') > 1


@pytest.fixture(scope="module")
def clone(repository, tmp_path_factory):
    """A clone that has pulled everything from a remote that the first one pushed to."""
    remote = tmp_path_factory.mktemp("remote")
    repository.run("dvc", "remote", "add", "--default", "shared", str(remote))
    repository.commit()
    repository.run("dvc", "push")
    root = tmp_path_factory.mktemp("clones") / "second"
    repository.run("git", "clone", "--quiet", str(repository.root), str(root))
    clone = Repository(root, tmp_path_factory.mktemp("scratch"))
    clone.keep_warm()
    assert not (root / "models" / MODEL / "model.onnx").exists()
    told = clone.fewtune("run", MODEL, code=2).stderr
    assert f"inputs are missing: `dvc pull models/{MODEL}/model.onnx.dvc` brings" in told
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


def test_real_results_are_recorded_and_loaded(clone, template):
    # MLflow's tables are there: it takes seconds to make them.
    shutil.copy(template, clone.root / "mlflow.db")
    clone.fewtune("record")
    # This project's code is not on the path.
    clone.run("env", "-u", "PYTHONPATH", sys.executable, "-c", LOAD)
