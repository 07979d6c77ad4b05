"""Folders of registered models and of models to register."""

import pytest


@pytest.fixture
def models(tmp_path):
    return tmp_path / "models"


@pytest.fixture
def inbox(tmp_path):
    directory = tmp_path / "inbox"
    directory.mkdir()
    return directory
