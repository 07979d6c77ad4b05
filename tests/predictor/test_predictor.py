"""The pretrained predictor: its file, which one is taken, what a run's own trials correct."""

import json

import numpy as np
import pytest

from fewtune.errors import InputError
from fewtune.predictor import AUTO, FLOATS, chosen_digest, digest, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predictor import (
    Consensus,
    Predictor,
    consensus_for,
    extrapolated,
    predictor_for,
)
from fewtune.predictor.pretrained import Pretrained, log_speeds, read_conditions
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import tvm
from tests.made.predictors import features, learnt, some_points


def test_paces_are_beside_the_best_and_failures_are_as_slow_as_any():
    speeds = log_speeds(np.array([2e-3, 1e-3, np.inf, 1.0]))
    assert speeds == pytest.approx([np.log(0.5), 0.0, np.log(0.22), np.log(0.22)])
    assert log_speeds(np.array([np.inf])) == pytest.approx([np.log(0.22)])


def test_its_file_is_read_as_it_was_written(tmp_path):
    points = some_points(200)
    pretrained = learnt(points)
    pretrained.write(tmp_path / "own")
    read = Pretrained.read(tmp_path / "own")
    assert read.expected(features(points)) == pytest.approx(pretrained.expected(features(points)))
    assert read.conditions["trials"] == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.json", "own.ubj"]
    again = tmp_path / "again"
    learnt(points).write(again / "own")
    assert (again / "own.ubj").read_bytes() == (tmp_path / "own.ubj").read_bytes()


def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path):
    own = tmp_path / "own"
    with pytest.raises(InputError, match="cannot read the pretrained predictor"):
        Pretrained.read(own)
    learnt(some_points(100)).write(own)
    trees, conditions = own.with_suffix(".ubj"), json.loads(own.with_suffix(".json").read_text())
    for wrong, message in (
        ([], "is of other features"),
        ({**conditions, "features": ["others"]}, "is of other features: train it again"),
        ({**conditions, "lanes": "many"}, "is damaged"),
    ):
        own.with_suffix(".json").write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=message):
            Pretrained.read(own)
    own.with_suffix(".json").write_text(json.dumps(conditions))
    before = chosen_digest(str(own))
    assert before == conditions["trees"]
    trees.write_bytes(b"no trees")
    with pytest.raises(InputError, match="is damaged"):
        Pretrained.read(own)
    assert chosen_digest(str(own)) not in (before, None)
    assert chosen_digest("never") is None


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        (b"[" * 200_000, "is damaged"),
        (b"{L\0\0\0\0\0\0\0\x01a" * 100_000, "ended by signal 11 .* while XGBoost was reading"),
    ],
)
def test_trees_that_would_crash_xgboost_do_not(tmp_path, trees, message):
    own = tmp_path / "own"
    learnt(some_points(100)).write(own)
    conditions = json.loads(own.with_suffix(".json").read_text())
    own.with_suffix(".ubj").write_bytes(trees)
    own.with_suffix(".json").write_text(json.dumps({**conditions, "trees": digest(trees)}))
    with pytest.raises(InputError, match=message):
        Pretrained.read(own)


def test_what_is_shipped_fits_these_features_and_says_its_conditions():
    assert len(shipped()) > 1
    for path in shipped():
        each = Pretrained.read(path)
        target = tvm.target.Target(each.conditions["target"])
        assert each.conditions["lanes"] == CpuTraits.of(target).lanes("float32")
        assert each.conditions["threads"] == 2
        assert each.conditions["tasks"] > 50
        assert {"device", "models", "target", "trials"} <= set(each.conditions)
    # Who resumes a journal must have them all as they were.
    assert chosen_digest("auto") not in [chosen_digest(str(path)) for path in shipped()]


def test_the_predictor_of_the_nearest_kind_of_cpu_is_taken(monkeypatch):
    def chosen_for(name: str) -> str:
        told = {"kind": "llvm", "mcpu": name, "num-cores": 2, "keys": ["cpu"]}
        chosen = predictor_for("auto", tvm.target.Target(told))
        assert chosen is not None
        return chosen.pretrained.conditions["target"]["mcpu"]

    assert chosen_for("znver5") == "znver5"
    assert chosen_for("znver4") == "znver4"
    # The only one for vectors of eight.
    assert chosen_for("znver3") == chosen_for("haswell") == "znver3"
    # Not trained on any: its maker decides.
    assert chosen_for("sapphirerapids") == "rocketlake"
    others = [path for path in shipped() if read_conditions(path)["target"]["mcpu"] != "znver4"]
    monkeypatch.setattr("fewtune.predictor.predictor.shipped", lambda: others)
    assert chosen_for("znver4") == "znver5"


def test_a_target_of_other_vectors_has_no_predictor():
    known = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2, "keys": ["cpu"]}
    named = next(str(each) for each in shipped() if read_conditions(each)["lanes"] == 16)
    assert predictor_for("auto", tvm.target.Target(known)) is not None
    assert predictor_for("never", tvm.target.Target(known)) is None
    assert predictor_for("auto", tvm.target.Target({**known, "num-cores": 4})) is None
    assert predictor_for(named, tvm.target.Target({**known, "num-cores": 4})) is not None
    narrow = {**known, "mcpu": "x86-64-v3"}
    assert predictor_for("auto", tvm.target.Target(narrow)) is not None
    assert predictor_for("auto", tvm.target.Target({**known, "mcpu": "x86-64-v2"})) is None
    assert predictor_for("auto", tvm.target.Target("cuda")) is None
    with pytest.raises(InputError, match="vectors of 16 elements, and the target's have 8"):
        predictor_for(named, tvm.target.Target(narrow))


def slow_where_deep(pretrained: Pretrained) -> tuple[np.ndarray, np.ndarray]:
    """Features of 300 points, and their speeds where deep bodies are slower than was learnt."""
    rows = features(some_points(300, seed=2))
    bodies = rows[:, NAMES.index("body")]
    return rows, pretrained.expected(rows) - 0.4 * (bodies > np.median(bodies))


def agreement(predictor: Predictor, task: int, rows: np.ndarray, speeds: np.ndarray) -> float:
    return float(np.corrcoef(predictor.expected(task, rows), speeds)[0, 1])


def test_own_trials_correct_what_was_learnt_elsewhere():
    pretrained = learnt(some_points(400))
    predictor = Predictor(pretrained)
    rows, speeds = slow_where_deep(pretrained)
    times_s = np.exp(-speeds) * 1e-3
    assert predictor.expected(0, rows) == pytest.approx(pretrained.expected(rows))
    before = agreement(predictor, 0, rows[220:], speeds[220:])
    for task in range(4):
        predictor.learn(task, rows[task:100:4], list(times_s[task:100:4]))
    # What four tasks have in common is expected of a fifth, and more of the four themselves.
    other = agreement(predictor, 4, rows[220:], speeds[220:])
    assert other > before + 0.02
    predictor.learn(4, rows[100:160], list(times_s[100:160]))
    assert agreement(predictor, 4, rows[220:], speeds[220:]) > other


def test_failures_and_the_speed_of_a_whole_task_teach_nothing():
    pretrained = learnt(some_points(400))
    predictor, same = Predictor(pretrained), Predictor(pretrained)
    rows, speeds = slow_where_deep(pretrained)
    times_s = np.exp(-speeds) * 1e-3
    for task in range(3):
        predictor.learn(task, rows[task:90:3], list(times_s[task:90:3]))
        same.learn(task, rows[task:90:3], list((1 + task) * times_s[task:90:3]))
    same.learn("failed", rows[220:], [float("inf")] * 80)
    assert same.expected(0, rows) == pytest.approx(predictor.expected(0, rows), abs=1e-5)


class Fixed(Pretrained):
    """Says the same of every point."""

    def __init__(self, speed: float) -> None:
        super().__init__(None, {"lanes": 16, "threads": 2})
        self._speed = speed

    def expected(self, features: np.ndarray) -> np.ndarray:
        return np.full(len(features), self._speed)


def test_the_nearest_has_half_of_the_say_and_the_others_share_the_rest():
    told = Consensus(Fixed(-0.4), [Fixed(-0.1), Fixed(-0.3)])
    assert told.expected(np.zeros((2, len(NAMES)))) == pytest.approx([-0.3, -0.3])
    assert told.conditions == {"lanes": 16, "threads": 2}


@pytest.mark.parametrize("risk", ["many", "is_odd_vector"])
def test_a_tile_that_may_spill_or_be_taken_apart_rates_lower(risk):
    features = np.zeros((2, len(NAMES)))
    features[1, NAMES.index(risk)] = 1.0
    sound, risky = Consensus(Fixed(-0.2), []).expected(features)
    assert sound == pytest.approx(-0.2)
    assert risky < sound


def test_all_predictors_for_such_vectors_and_threads_are_asked():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
    fitting = [path for path in shipped() if Pretrained.read(path).conditions["lanes"] == 16]
    features = np.random.default_rng(0).random((5, len(NAMES)))
    found = consensus_for(AUTO, target)
    nearest = predictor_for(AUTO, target)
    assert found is not None and nearest is not None and len(fitting) > 1
    assert found.pretrained.conditions == nearest.pretrained.conditions
    assert not np.allclose(
        found.pretrained.expected(features), nearest.pretrained.expected(features)
    )


def test_products_of_bytes_are_rated_by_what_learnt_from_such(monkeypatch):
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver5", "num-cores": 2})
    features = np.random.default_rng(0).random((5, len(NAMES)))
    known = predictor_for(AUTO, target)
    assert known is not None and known.of_kind(FLOATS) is known.pretrained
    of_floats, of_bytes = (known.expected("task", features, each) for each in (FLOATS, "int32"))
    assert not np.allclose(of_floats, of_bytes)
    others = [each for each in shipped() if "products" not in read_conditions(each)]
    monkeypatch.setattr("fewtune.predictor.predictor.shipped", lambda: others)
    known = predictor_for(AUTO, target)
    assert known is not None and known.of_kind("int32") is known.pretrained


def test_beyond_what_was_learnt_is_extrapolated_and_said_so():
    cpu, known = {"kind": "llvm", "mcpu": "znver5"}, Pretrained.read(shipped()[0])
    four, two = (tvm.target.Target({**cpu, "num-cores": count}) for count in (4, 2))
    assert predictor_for("auto", four) is None
    assert "for 4 its" in extrapolated(known, four)
    assert not extrapolated(known, two)
