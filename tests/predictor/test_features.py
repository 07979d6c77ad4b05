"""Features of decisions: what tiles hold, what threads share, what is touched."""

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.features import DecisionFeatures, weights_bytes, weights_outgrow_cache
from fewtune.runtime import dot_products
from fewtune.runtime.tvm import has_feature, te
from fewtune.schedule.space.design_space import LOCATION, Point
from fewtune.schedule.space.prior import Prior
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.task.access import Walk, touched_elements
from fewtune.task.extract import task_module
from tests import recorded, tuned_tiny
from tests.made.predictors import features


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(NAMES, map(float, row), strict=True))


def test_features_say_what_a_tile_holds():
    space = recorded.space()
    program = space.programs[0]
    tiles = iter([(1, 1, 2, 1), (1, 1, 1, 8), (1, 4)])
    decisions = tuple(
        next(tiles) if isinstance(choice.default, tuple) else 1 for choice in program.choices
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


def test_a_window_touches_what_its_rows_share_once():
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


def test_where_data_is_padded_is_told_apart():
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


def product(data_type: str, multiply: Callable[[Any, Any], Any]) -> SearchSpace:
    """The space of a product of 24 rows of 64 elements with 64 rows of 48."""
    rows, columns = te.placeholder((24, 64), data_type), te.placeholder((64, 48), data_type)
    k = te.reduce_axis((0, 64), "k")
    found = te.compute(
        (24, 48), lambda i, j: te.sum(multiply(rows[i, k], columns[k, j]), axis=k), name="product"
    )
    module = task_module(te.create_prim_func([rows, columns, found]))
    return SearchSpace(module, tuned_tiny.target())


def test_products_of_bytes_are_told_as_those_of_as_many_floats():
    form = dot_products.form_of(lambda name: has_feature(tuned_tiny.target(), name))
    spaces = [
        product("float32", lambda a, b: a * b),
        product("int32", lambda a, b: dot_products.dot4(form, a, b)),
    ]
    rows = []
    for space in spaces:
        prior = Prior(space)
        assert prior.contraction is not None
        found = DecisionFeatures.if_usable(space.programs, prior.contraction, is_cold=False)
        assert found is not None
        random = np.random.default_rng(0)
        rows.append(found.of([prior.draw(random) for _ in range(16)]))
    assert rows[0].tolist() == rows[1].tolist()


def test_nothing_is_told_of_products_of_doubles():
    space = product("float64", lambda a, b: a * b)
    contraction = Prior(space).contraction
    assert DecisionFeatures.if_usable(space.programs, contraction, is_cold=False) is None


def test_weights_outgrow_half_the_cache():
    tasks = tuned_tiny.tasks()
    needed = weights_bytes(tasks)
    assert not weights_outgrow_cache(tasks, 2 * needed)
    assert weights_outgrow_cache(tasks, 2 * needed - 1)
