"""Checkouts: one of made results with an MLflow of its own, one without results."""

import shutil
from pathlib import Path

import pytest

from fewtune.stages.paths import Places
from tests.made.checkout import Checkout

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """MLflow's tables made once: it takes seconds."""
    from fewtune.pipelines.records.tracking import Store  # MLflow takes seconds to load

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        Store(path.parent).client.search_experiments()
        client = Store(path.parent).client
        client.rename_experiment(Store(path.parent).experiment_id, "template")
    return path


@pytest.fixture
def checkout(tmp_path, template, monkeypatch):
    database = tmp_path / "mlflow.db"
    database.write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    # Its pictures take half of the time of recording a result.
    monkeypatch.setattr("fewtune.pipelines.records.record.model_page", lambda *_: "page")
    yield Checkout(tmp_path)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout without results."""
    for name in ("dvc.yaml", "params.yaml", "prefect.yaml"):
        shutil.copy(PROJECT / name, tmp_path)
    for name in ("bank", "logs", "predictors"):
        (tmp_path / name).mkdir()
    registration = Places(tmp_path).registration("squeezenet")
    registration.parent.mkdir(parents=True)
    registration.write_text("light: squeezenet\nseed: 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return tmp_path
