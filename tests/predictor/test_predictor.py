"""The pretrained predictor: features of decisions, its file, what a run's own trials correct."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import numpy as np
import pytest

from fewtune.errors import InputError
from fewtune.model.passes import winograd
from fewtune.options import TuneOptions
from fewtune.predictor import chosen_digest, gaussian_process, shipped
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.predictor import Predictor, predictor_for, pretrained_for
from fewtune.predictor.pretrained import Pretrained, log_paces, read_conditions
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import te, tvm
from fewtune.schedule.access import Walk, touched_elements
from fewtune.schedule.space.design_space import LOCATION, TILE, Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.search import Guide, Knowledge, make_strategy
from fewtune.search.evolutionary import EvolutionarySearch
from fewtune.task.extract import task_module
from tests import recorded, tuned_tiny
from tests.made.predictors import features, learnt, some_points


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, map(float, row), strict=True))


def test_features_say_what_a_tile_holds() -> None:
    space = recorded.space()
    program = space.programs[0]
    tiles = iter([(1, 1, 2, 1), (1, 1, 1, 8), (1, 4)])
    decisions = tuple(
        next(tiles) if isinstance(choice.given, tuple) else 1 for choice in program.choices
    )
    (row,) = features([Point(program.number, decisions)])
    found = named(row)
    # 2x4 times 4x8: two rows of one vector of eight, all four terms inside.
    assert found["reduction"] == found["inner_reduction"] == 2
    assert (found["rows"], found["width"], found["groups"]) == (1, 3, 0)
    assert (found["tile_rows"], found["innermost_rows"], found["elements"]) == (1, 0, 3)
    assert (found["vectors"], found["accumulators"], found["body"]) == (0, 1, 3)
    assert found["too_few"] == 1
    assert found["loads"] == (1 + 2) / 2
    assert found["weights_bytes"] == log2(4 * 4 * 8)
    assert found["register_weights"] == found["tile_weights"] == log2(4 * 4 * 8)
    assert found["register_data"] == log2(4 * 2 * 4)
    assert found["cache_results"] == log2(4 * 2 * 8)
    assert found["threads"] == 0


@pytest.mark.parametrize(
    ("rows", "vectors", "parted"),
    # Threads take what comes first: the rows, unless these are left whole.
    [((2, 1, 1, 1), (1, 1, 1, 8), (1, 0)), ((1, 1, 2, 1), (2, 1, 1, 4), (0, 1))]
    + [((2, 1, 1, 1), (2, 1, 1, 4), (1, 0)), ((1, 1, 2, 1), (1, 1, 1, 8), (0, 0))],
)
def test_what_threads_part_is_told(
    rows: tuple[int, ...], vectors: tuple[int, ...], parted: tuple[int, int]
) -> None:
    program = recorded.space().programs[0]
    tiles = iter([rows, vectors, (1, 4)])
    decisions = tuple(
        next(tiles) if isinstance(choice.given, tuple) else 1 for choice in program.choices
    )
    (row,) = features([Point(program.number, decisions)])
    assert (named(row)["parted_alike"], named(row)["parts_vectors"]) == parted


@pytest.mark.parametrize(
    ("places", "count", "parted"), [((4, 4), (1, 8), 0), ((1, 16), (2, 4), 1), ((2, 8), (2, 4), 0)]
)
def test_tiles_are_what_was_parted_before_winograds_products(
    places: tuple[int, int], count: tuple[int, int], parted: int
) -> None:
    tiles, weights = te.placeholder((16, 8, 16)), te.placeholder((16, 16, 32))
    function = te.create_prim_func([tiles, weights, winograd.multiplied(tiles, weights)])
    space = SearchSpace(task_module(function), recorded.space().target)
    contraction = Prior(space).contraction
    assert contraction is not None
    program = space.programs[0]
    decided = iter([(*places, 1, 1), (*count, 1, 1), (1, 1, 1, 32), (4, 4)])
    decisions = tuple(next(decided) if choice.kind == TILE else 1 for choice in program.choices)
    found = DecisionFeatures(space.programs, contraction, is_cold=False)
    (row,) = found.of([Point(program.number, decisions)])
    assert named(row)["parted_alike"] == parted


def test_a_window_touches_what_its_rows_share_once() -> None:
    # Three rows of a window of three along one axis of stride one: five elements, not nine.
    walk = [Walk(1, 8), Walk(1, 3), Walk(0, 4)]
    assert touched_elements(walk, [np.array([3]), np.array([3]), np.array([4])]) == 5
    # Two images, ten apart, of three rows and a window of three: rows share, images do not.
    walk = [Walk(10, 2), Walk(1, 8), Walk(1, 3)]
    assert touched_elements(walk, [np.array([2]), np.array([3]), np.array([3])]) == 10
    # A window of three of every fourth row: a step that leaves a gap spans it.
    walk = [Walk(4, 3), Walk(4, 3), Walk(1, 2)]
    assert touched_elements(walk, [np.array([3]), np.array([3]), np.array([2])]) == 10
    # Rows eight apart share nothing.
    assert touched_elements([Walk(8, 4), Walk(1, 3)], [np.array([3]), np.array([3])]) == 9


def test_every_point_of_a_convolution_has_features() -> None:
    space = SearchSpace(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target())
    prior = Prior(space)
    assert prior.contraction is not None
    found = DecisionFeatures(space.programs, prior.contraction, is_cold=True)
    random = np.random.default_rng(0)
    rows = found.of([prior.draw(random) for _ in range(64)])
    assert found.is_usable
    assert rows.shape == (64, len(NAMES))
    assert np.isfinite(rows).all()
    assert set(rows[:, NAMES.index("is_cold")]) == {1.0}
    # What tells one task from another is the same of all its points.
    assert len(np.unique(rows[:, : NAMES.index("elements")], axis=0)) == 1
    assert len(np.unique(rows, axis=0)) > 16


def test_where_data_is_padded_is_told_apart() -> None:
    space = SearchSpace(tuned_tiny.convolutions()["b"].mod, tuned_tiny.target())
    prior = Prior(space)
    assert prior.contraction is not None
    found = DecisionFeatures(space.programs, prior.contraction, is_cold=False)
    point = prior.draw(np.random.default_rng(0))
    kinds = [choice.kind for choice in space.programs[point.program].choices]
    place = kinds.index(LOCATION)

    def told(location: int | None) -> tuple[float, ...]:
        decisions = (*point.decisions[:place], location, *point.decisions[place + 1 :])
        row = named(found.of([Point(point.program, decisions)])[0])
        return row["is_inlined"], row["is_ahead"], row["is_outside"]

    assert told(-2) == (1, 0, 0)
    assert told(-1) == (0, 1, 0)
    assert told(2) == (0, 0, 1)
    # One that is left open may be anywhere.
    assert told(8) == told(None) == (0, 0, 0)


def test_paces_are_beside_the_best_and_failures_are_as_slow_as_any() -> None:
    paces = log_paces(np.array([2e-3, 1e-3, np.inf, 1.0]))
    assert paces == pytest.approx([np.log(0.5), 0.0, np.log(0.22), np.log(0.22)])
    assert log_paces(np.array([np.inf])) == pytest.approx([np.log(0.22)])


def test_it_ranks_what_it_has_not_seen() -> None:
    pretrained = learnt(some_points(600))
    unseen = some_points(400, seed=1)
    times_s = np.array([recorded.times_s()[point] for point in unseen])
    order = np.argsort(-pretrained.expected(features(unseen)))
    assert np.median(times_s[order[:40]]) < 0.7 * np.median(times_s)


def test_its_file_is_read_as_it_was_written(tmp_path: Path) -> None:
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


def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path) -> None:
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


def test_what_is_shipped_fits_these_features_and_says_its_conditions() -> None:
    assert len(shipped()) > 1
    for path in shipped():
        each = Pretrained.read(path)
        target = tvm.target.Target(each.conditions["target"])
        assert each.lanes == CpuTraits.of(target).lanes("float32")
        assert each.threads == 2
        assert each.conditions["tasks"] > 50
        assert {"device", "models", "target", "trials"} <= set(each.conditions)
    # Who resumes a journal must have them all as they were.
    assert chosen_digest("auto") not in [chosen_digest(str(path)) for path in shipped()]


def test_the_predictor_of_the_nearest_kind_of_cpu_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen_for(name: str) -> str:
        told = {"kind": "llvm", "mcpu": name, "num-cores": 2, "keys": ["cpu"]}
        chosen = pretrained_for("auto", tvm.target.Target(told))
        assert chosen is not None
        return chosen.conditions["target"]["mcpu"]

    assert chosen_for("znver5") == "znver5"
    assert chosen_for("znver4") == "znver4"
    # The only one for vectors of eight.
    assert chosen_for("znver3") == chosen_for("haswell") == "znver3"
    # Not trained on any: its maker decides.
    assert chosen_for("sapphirerapids") == "rocketlake"
    others = [path for path in shipped() if read_conditions(path)["target"]["mcpu"] != "znver4"]
    monkeypatch.setattr("fewtune.predictor.predictor.shipped", lambda: others)
    assert chosen_for("znver4") == "znver5"


def test_a_target_of_other_vectors_has_no_predictor() -> None:
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
    """Features of 300 points, and their paces where deep bodies are slower than was learnt."""
    rows = features(some_points(300, seed=2))
    bodies = rows[:, NAMES.index("body")]
    return rows, pretrained.expected(rows) - 0.4 * (bodies > np.median(bodies))


def agreement(predictor: Predictor, task: int, rows: np.ndarray, paces: np.ndarray) -> float:
    return float(np.corrcoef(predictor.expected(task, rows), paces)[0, 1])


def test_own_trials_correct_what_was_learnt_elsewhere() -> None:
    pretrained = learnt(some_points(400))
    predictor = Predictor(pretrained)
    rows, paces = slow_where_deep(pretrained)
    times_s = np.exp(-paces) * 1e-3
    assert predictor.expected(0, rows) == pytest.approx(pretrained.expected(rows))
    before = agreement(predictor, 0, rows[220:], paces[220:])
    for task in range(4):
        predictor.learn(task, rows[task:100:4], list(times_s[task:100:4]))
    # What four tasks have in common is expected of a fifth, and more of the four themselves.
    other = agreement(predictor, 4, rows[220:], paces[220:])
    assert other > before + 0.02
    predictor.learn(4, rows[100:160], list(times_s[100:160]))
    assert agreement(predictor, 4, rows[220:], paces[220:]) > other


def test_failures_and_the_speed_of_a_whole_task_teach_nothing() -> None:
    pretrained = learnt(some_points(400))
    predictor, same = Predictor(pretrained), Predictor(pretrained)
    rows, paces = slow_where_deep(pretrained)
    times_s = np.exp(-paces) * 1e-3
    for task in range(3):
        predictor.learn(task, rows[task:90:3], list(times_s[task:90:3]))
        same.learn(task, rows[task:90:3], list((1 + task) * times_s[task:90:3]))
    same.learn("failed", rows[220:], [float("inf")] * 80)
    assert same.expected(0, rows) == pytest.approx(predictor.expected(0, rows), abs=1e-5)


def test_few_trials_correct_little() -> None:
    pretrained = learnt(some_points(400))
    predictor = Predictor(pretrained)
    rows, paces = slow_where_deep(pretrained)
    predictor.learn(0, rows[:1], [1e-3])
    assert predictor.expected(1, rows) == pytest.approx(pretrained.expected(rows), abs=1e-5)
    predictor.learn(0, rows[1:3], list(1e-3 * np.exp(paces[0] - paces[1:3])))
    assert np.abs(predictor.expected(1, rows) - pretrained.expected(rows)).max() < 0.15


def test_a_long_run_learns_of_the_fastest_of_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_process, "_MOST_SAMPLES", 40)
    rest = gaussian_process.Residual()
    rows = features(some_points(100, seed=2))
    times_s = np.linspace(1e-3, 3e-3, 50)
    rest.learn("one", rows[:50], times_s, np.zeros(50))
    rest.learn("other", rows[50:], times_s[::-1], np.zeros(50))
    rest.correction("one", rows)
    decisions = rows[:, gaussian_process._DECISIONS].astype(float)
    assert rest._rows * rest._spreads == pytest.approx(
        np.concatenate([decisions[:20], decisions[80:]])
    )


def test_a_guide_has_register_tiles_take_turns() -> None:
    space = recorded.space()
    prior = Prior(space)
    guide = Guide.of(space, prior, Predictor(learnt(some_points(600))), is_cold=False)
    assert guide is not None
    points = some_points(300, seed=3)
    ordered = guide.ordered([*points, *points])
    assert sorted(map(str, ordered)) == sorted(map(str, points))
    best = [points[int(i)] for i in np.argsort(-guide.expected(points), kind="stable")]
    tiles = [len({prior.tile_of(point) for point in each[:16]}) for each in (ordered, best)]
    assert tiles[0] >= tiles[1]
    assert ordered[0] == best[0]
    # What was measured holds back its like.
    held_back = guide.ordered(points, [best[0]] * 4)
    other = next(point for point in best if prior.tile_of(point) != prior.tile_of(best[0]))
    ahead = guide.expected([best[0]])[0] - guide.expected([other])[0]
    assert held_back[0] == (other if ahead < 0.08 else best[0])


def test_a_guide_rates_a_point_once() -> None:
    space = recorded.space()
    guide = Guide.of(space, Prior(space), Predictor(learnt(some_points(600))), is_cold=False)
    assert guide is not None
    points = some_points(60, seed=3)
    rated = dict.fromkeys(points[:20], 0.5)
    ordered = guide.ordered(points, rated=rated)
    assert set(rated) == set(points)
    # What was said of a point before is what counts.
    assert set(ordered[:20]) == set(points[:20])
    assert [rated[p] for p in points[20:]] == pytest.approx(list(guide.expected(points[20:])))


def test_a_guided_search_finds_sooner_what_a_search_finds() -> None:
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(600))))
    options = TuneOptions(batch_size=8)

    def first_batch(known: Knowledge, seed: int) -> list[Point]:
        search = make_strategy(recorded.space(), known, options, seed)
        assert isinstance(search, EvolutionarySearch)
        return [proposal.point for proposal in search.next_batch(8)]

    times_s = recorded.times_s()
    guided = [min(times_s[p] for p in first_batch(knowledge, seed)) for seed in range(5)]
    alone = [min(times_s[p] for p in first_batch(Knowledge(), seed)) for seed in range(5)]
    assert np.median(guided) <= np.median(alone)
    assert first_batch(knowledge, 1) == first_batch(knowledge, 1)


def test_a_guided_search_proposes_nothing_twice_and_learns() -> None:
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(300))))
    search = make_strategy(recorded.space(), knowledge, TuneOptions(batch_size=8), 1)
    seen: list[Point] = []
    for _ in range(5):
        proposals = search.next_batch(8)
        seen += [proposal.point for proposal in proposals]
        assert all(proposal.features is None for proposal in proposals)
        search.learn(proposals, [recorded.times_s()[p.point] for p in proposals])
    assert len(seen) == len(set(seen)) == 40
    assert knowledge.predictor is not None
    assert knowledge.predictor._residual._samples == 40
    # The cost model is not asked, and learns nothing.
    assert knowledge.cost_model.samples == 0


def test_without_the_predictor_the_cost_model_decides() -> None:
    knowledge = Knowledge(predictor=Predictor(learnt(some_points(100))))
    plain = make_strategy(recorded.space(), knowledge, TuneOptions(informed_start=False), 1)
    assert plain.guide is None
    native = make_strategy(recorded.space(), knowledge, TuneOptions(strategy="metaschedule"), 1)
    assert native.guide is None
    other = Knowledge(predictor=Predictor(learnt(some_points(100))))
    assert other.predictor is not None
    other.predictor.pretrained.conditions["lanes"] = 16
    assert make_strategy(recorded.space(), other, TuneOptions(), 1).guide is None
