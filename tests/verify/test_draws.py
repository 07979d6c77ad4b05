"""Drawn inputs are within the range that their use allows."""

from __future__ import annotations

import numpy as np

from fewtune.onnx_graph.simplify import with_shapes
from fewtune.verify.draws import LARGER, LIMITS, drawn_inputs, index_limits, rare_inputs
from fewtune.verify.values import tensor_specs
from tests import tiny_models
from tests.made.onnx_text import model_of
from tests.verify import small_models


def test_integers_are_below_the_rows_of_their_table():
    model = small_models.embedding()
    assert index_limits(model) == {"ids": (-50, 49)}
    first, second, *_ = drawn_inputs(model, tensor_specs(model)[0], 0)
    for draw in (first, second):
        assert 1 < draw.feeds["ids"].max() < 50
    assert set(np.unique(first.feeds["mask"])) == {0, 1}
    assert (second.feeds["mask"] == 1).all()


def test_indices_are_below_the_axes_that_they_read_and_write():
    # A graph network: edges between rows, and rows that are summed for each graph.
    model = with_shapes(
        model_of(
            """(float[9,4] x, int64[2,20] edges, int64[9] graphs, int64[5] tuples)
            => (float[20,4] messages, float[5,4] read) {
                sources = Gather <axis = 0> (edges, first)
                messages = Gather (x, sources)
                column = Unsqueeze (graphs, last)
                places = Expand (column, shape)
                pooled = ScatterElements <reduction = "add"> (sums, places, x)
                one_each = Unsqueeze (tuples, last)
                chosen = Where (is_low, one_each, one_each)
                read = GatherND (pooled, chosen)
            }""",
            18,
            first=0,
            last=[-1],
            shape=[9, 4],
            sums=np.zeros((3, 4), np.float32),
            is_low=[[True]],
        )
    )
    limits = {"edges": (-9, 8), "graphs": (-3, 2), "tuples": (-3, 2)}
    assert index_limits(model, is_certain=False) == limits
    # Where may choose other values than those of the input.
    del limits["tuples"]
    assert index_limits(model) == limits


def test_constants_that_are_added_move_the_limits_of_an_index():
    model = model_of(
        """(int64[4] places) => (float[4,2] read, float[4,2] not_followed, float[4] as_well) {
            rows = Add (places, offsets)
            read = Gather (table, rows)
            mirrored = Sub (one, places)
            not_followed = Gather (table, mirrored)
            as_well = GatherElements (short, places)
        }""",
        offsets=[2, 0, 3, 0],
        one=1,
        table=np.zeros((10, 2), np.float32),
        short=np.zeros(6, np.float32),
    )
    assert index_limits(model) == {"places": (-6, 5)}
    del model.graph.node[-1], model.graph.output[-1]
    assert index_limits(model) == {"places": (-10, 6)}


def test_floats_are_drawn_in_three_ways_and_reproducibly():
    model = tiny_models.tiny_convolutional_model()
    draws = drawn_inputs(model, tensor_specs(model)[0], 3)
    low = [float(draw.feeds["input"].min()) for draw in draws]
    assert low[0] < 0 <= low[1]
    assert low[2] > 0
    assert draws[2].feeds["input"].max() > 1
    for draw, again in zip(draws, drawn_inputs(model, tensor_specs(model)[0], 3), strict=True):
        np.testing.assert_array_equal(draw.feeds["input"], again.feeds["input"])


def test_rare_inputs_are_at_limits_far_from_zero_huge_and_infinite():
    model = small_models.embedding()
    specs = tensor_specs(model)[0]
    limits, larger = rare_inputs(model, specs, drawn_inputs(model, specs, 0)[0])
    assert (limits.name, larger.name) == (LIMITS, LARGER)
    assert set(np.unique(limits.feeds["ids"])) == {-50, 49}
    assert set(np.unique(limits.feeds["mask"])) == {0, 1}
    assert larger.feeds["mask"].max() > 99
    model = tiny_models.tiny_convolutional_model()
    specs = tensor_specs(model)[0]
    far, huge, infinite = rare_inputs(model, specs, drawn_inputs(model, specs, 0)[0])
    assert far.feeds["input"].min() > 200
    assert np.count_nonzero(huge.feeds["input"] == 1e6) == 1
    assert np.count_nonzero(np.isinf(infinite.feeds["input"])) == 1
