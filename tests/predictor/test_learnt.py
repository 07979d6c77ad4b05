"""What tuning taught about a machine is kept for the next model, by machine and kind of product."""

import numpy as np
import pytest

from fewtune.predictor import LEARNT_FOLDER, learnt
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predictor import FLOATS, Predictor
from fewtune.predictor.pretrained import TaskSamples
from tests import tuned_tiny

DEEP = NAMES.index("inner_reduction")


class Constant:
    """A predictor that finds all points alike."""

    conditions: dict = {}
    lanes = 8

    def expected(self, features):
        return np.zeros(len(features))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(LEARNT_FOLDER, str(tmp_path / "learnt"))
    return tmp_path / "learnt"


def rows(count=40):
    found = np.zeros((count, len(NAMES)), dtype="float32")
    found[:, DEEP] = np.arange(count) / 8
    return found


def slow_where_deep(kind, task=1):
    name = learnt.name_of(kind, f"{task:016x}")
    return TaskSamples(rows(), 1e-3 * np.exp(rows()[:, DEEP] / 4), name)


def ratings(kind=FLOATS, machine=None, own=()):
    predictor = Predictor(Constant())
    trials = learnt.teach(predictor, machine or tuned_tiny.fingerprint(), own)
    return trials, predictor.expected("another task", rows(), kind)


def test_the_next_model_starts_from_what_was_measured():
    assert ratings()[0] == 0
    learnt.keep([slow_where_deep(FLOATS)], tuned_tiny.fingerprint())
    trials, found = ratings()
    assert trials == 40
    assert found[0] > found[20] > found[-1]


def test_a_models_own_tasks_teach_nothing_so_it_is_predicted_alike_again():
    learnt.keep(
        [slow_where_deep(FLOATS, 255), slow_where_deep(FLOATS, 2)], tuned_tiny.fingerprint()
    )
    assert ratings(own=[f"{255:016x}"])[0] == 40


def test_bytes_teach_nothing_about_floats():
    learnt.keep([slow_where_deep("int32")], tuned_tiny.fingerprint())
    assert not ratings(FLOATS)[1].any()
    assert ratings("int32")[1].any()


def test_another_machine_is_not_taught():
    here = tuned_tiny.fingerprint()
    learnt.keep([slow_where_deep(FLOATS)], here)
    assert ratings(machine=here.model_copy(update={"threads": here.threads + 1}))[0] == 0


def test_tuning_the_same_again_replaces_what_was_kept(folder):
    for _ in range(2):
        learnt.keep(
            [slow_where_deep(FLOATS, 1), slow_where_deep(FLOATS, 2)], tuned_tiny.fingerprint()
        )
    learnt.keep([slow_where_deep(FLOATS, 3)], tuned_tiny.fingerprint())
    assert ratings()[0] == 120
    assert len(list(folder.rglob("*.npz"))) == 2


def test_a_damaged_file_teaches_nothing(folder):
    learnt.keep([slow_where_deep(FLOATS)], tuned_tiny.fingerprint())
    (file,) = folder.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert ratings()[0] == 0
