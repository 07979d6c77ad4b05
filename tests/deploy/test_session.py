"""A session computes what the library computes, and refuses what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from fewtune.deploy.session import InferenceSession
from tests.made import libraries

X = np.random.default_rng(0).normal(size=(libraries.ROWS, libraries.COLUMNS)).astype("float32")
IDS = np.array([0, 9, -1])


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return InferenceSession(libraries.library(tmp_path_factory.mktemp("session") / "model.so"))


def test_it_computes_what_the_library_computes(session):
    twice, rows, same, table = session.run(None, {"x": X, "ids": np.array([0, 9, 4])})
    np.testing.assert_array_equal(twice, 2 * X)
    np.testing.assert_array_equal(rows, libraries.TABLE[[0, 9, 4]])
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(table, libraries.TABLE)
