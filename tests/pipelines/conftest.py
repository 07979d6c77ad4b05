"""A checkout of made results with an MLflow of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.made.checkout import Checkout


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables made once: it takes seconds."""
    from pipelines.records.tracking import Store  # MLflow takes seconds to load

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
        Store(path.parent).client.search_experiments()
        client = Store(path.parent).client
        client.rename_experiment(Store(path.parent).experiment_id, "template")
    return path


@pytest.fixture
def checkout(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkout]:
    database = tmp_path / "mlflow.db"
    database.write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    yield Checkout(tmp_path)
