"""MLflow's SQLite file: whole, or made anew where a killed process left half of it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fewtune.pipelines.checkout.environment import default_tracking_uri, local_file
from fewtune.pipelines.records.tracking import make_whole


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master")}


@pytest.fixture(autouse=True)
def _uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_a_store_that_is_a_file_is_known_by_its_uri(tmp_path):
    assert local_file(default_tracking_uri(tmp_path)) == tmp_path / "mlflow.db"
    assert local_file("sqlite://") is None
    assert local_file("http://127.0.0.1:5000") is None


@pytest.mark.slow
def test_a_new_file_has_all_tables_and_an_old_one_is_kept(tmp_path):
    path = tmp_path / "mlflow.db"
    make_whole(path)
    assert {"runs", "experiments", "alembic_version"} <= tables(path)
    assert list(tmp_path.iterdir()) == [path]
    inode = path.stat().st_ino
    make_whole(path)
    assert path.stat().st_ino == inode


def test_what_is_no_database_is_not_replaced(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_text("notes of somebody's\n" * 100)
    make_whole(path)
    assert path.read_text().startswith("notes")
