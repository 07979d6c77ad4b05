"""What finals charge a contender with: what calls after it take for its sake, but for chance."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from fewtune.finals.finalists import FinalistRules, contenders_in_model, contenders_of
from fewtune.schedule.space.transfer import parallel_axis, usual_axis
from fewtune.timing import interference
from fewtune.trial.trial import Trial
from tests.made.tasks import made_task

ROWS, COLUMNS = [[2, 1, 1, 1], [1, 1, 1, 8]], [[1, 1, 1, 2], [4, 1, 1, 2]]


def trace(*tiles: list[int]) -> list[Any]:
    return [[], [[place, tile] for place, tile in enumerate(tiles)]]


def made_trial(name: str, time_s: float, tiles: list[list[int]]) -> Trial:
    return Trial(json.dumps([[name], trace(*tiles)[1]]), [time_s], None)


def runs(count: int, contenders: int) -> list[dict[str, int]]:
    return [{"writer": run % contenders, "reader": 0} for run in range(count)]


def test_who_makes_its_reader_slow_is_charged_with_it():
    picked = runs(16, 2)
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((16, 2))
    # The second contender is faster by 0.1, and its reader slower by 0.5.
    kind_s, rude_s = np.array([1.0, 2.0]), np.array([0.9, 2.5])
    times_s = np.stack([rude_s if run["writer"] else kind_s for run in picked]) * noise
    samples = interference.charged(times_s, ["writer", "reader"], picked, [{1}, set()])
    kind, rude = (float(np.median(each)) for each in samples["writer"])
    assert kind < rude
    assert rude - kind == pytest.approx(0.4, abs=0.1)
    # Who has no other contender is charged with nothing.
    assert samples["reader"] == [list(times_s[:, 1])]


def test_chance_is_not_charged():
    random = np.random.default_rng(1)
    charges = []
    for _ in range(200):
        picked = runs(24, 4)
        times_s = np.stack([np.ones(24), 5 + 0.2 * random.standard_normal(24)], axis=1)
        samples = interference.charged(times_s, ["writer", "reader"], picked, [{1}, set()])
        charges += [each[0] - 1.0 for each in samples["writer"]]
    # Of six figures each the deviation itself is rough: some pass, most do not.
    assert np.mean(np.array(charges) == 0.0) > 0.8


def test_what_a_reader_usually_takes_is_that_of_its_own_contender():
    # The reader's second contender takes ten times the first one's time, after either writer.
    picked = [{"writer": run % 2, "reader": run // 2 % 2} for run in range(16)]
    times_s = np.array([[1.0, 1.0 + 9.0 * run["reader"]] for run in picked])
    samples = interference.charged(times_s, ["writer", "reader"], picked, [{1}, set()])
    assert samples["writer"] == [[1.0] * 8, [1.0] * 8]
    assert samples["reader"] == [[1.0] * 8, [10.0] * 8]


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        (trace([1, 1, 1, 1], [2, 1, 1, 7], [4, 1, 1, 16], [8, 2]), 1),
        (trace([1, 1, 1, 1], [1, 2, 1, 7], [4, 1, 1, 16], [8, 2]), 2),
        (trace([1, 1, 1, 1], [8, 2]), None),
        # Reductions have two levels, and other decisions none.
        ([[], [[0, [8, 2]], [1, 3]]], None),
        (None, None),
        (["no trace"], None),
    ],
)
def test_the_axis_that_threads_part_first(given, axis):
    assert parallel_axis(json.dumps(given)) == axis


# The times below are a thousand times those of real kernels.
in_model = partial(contenders_in_model, rules=FinalistRules(long_s=2.0))


def names_of(trials: list[Trial]) -> list[str]:
    return [trial.trace[0][0] for trial in trials]


def test_where_the_fastest_parts_another_axis_some_contenders_part_the_usual_one():
    ranked = [made_trial(str(i), 1.04 + i / 100, COLUMNS) for i in range(5)]
    ranked += [made_trial("rows", 1.4, ROWS), made_trial("later", 1.45, ROWS)]
    assert names_of(in_model(ranked, 0.5, 4, usual=0)) == ["0", "1", "rows", "later"]
    assert names_of(in_model(ranked[:6], 0.5, 4, usual=0)) == ["0", "1", "2", "rows"]
    # Lighter tasks send fewer, down to those whose neighbours take no part worth it either.
    assert names_of(in_model(ranked, 0.007, 4, usual=0)) == ["0", "rows"]
    assert names_of(in_model(ranked, 0.003, 4, usual=0)) == ["0", "rows"]
    assert names_of(in_model(ranked, 0.001, 4, usual=0)) == ["0"]
    # Where no axis is the usual one, and in duels, the fastest alone meet.
    assert names_of(in_model(ranked, 0.5, 4)) == ["0", "1", "2", "3"]
    assert names_of(contenders_of(ranked, 0.5, 4)) == ["0", "1", "2", "3"]


def test_a_kernel_that_takes_long_has_one_contender():
    ranked = [made_trial(str(i), 2.0 + i / 100, COLUMNS) for i in range(3)]
    ranked.append(made_trial("rows", 2.1, ROWS))
    assert names_of(in_model(ranked, 0.5, 4, usual=0)) == ["0"]
    assert names_of(contenders_of(ranked, 0.5, 4)) == ["0", "1", "2", "rows"]
    assert in_model([], 0.5, 4) == []


def test_where_the_fastest_parts_the_usual_axis_all_contenders_do():
    ranked = [made_trial("0", 1.0, ROWS), made_trial("columns", 1.01, COLUMNS)]
    ranked += [made_trial("1", 1.02, ROWS), made_trial("2", 1.3, ROWS)]
    assert names_of(in_model(ranked, 0.5, 4, usual=0)) == ["0", "1"]
    assert names_of(in_model(ranked, 0.003, 4, usual=0)) == ["0"]


@pytest.mark.parametrize(
    ("anchor", "result", "axis"),
    [
        ("conv2d_nhwc", [1, 14, 14, 64], 1),
        ("matmul", [1, 1000], 1),
        ("matmul", [128, 64], 0),
        # Winograd's transforms part the tiles of their products.
        ("winograd_matmul2", [16, 49, 32], 1),
        ("pool", [1, 1], None),
    ],
)
def test_the_axis_that_other_kernels_part(anchor, result, axis):
    info = made_task("task").info.model_copy(update={"anchor": anchor, "shapes": [[1], result]})
    assert usual_axis(info) == axis


def test_followers_are_who_finds_memory_where_a_call_left_it():
    x, y, z = 1, 2, 3
    touched = [([], [x]), ([x], [y]), ([x], [z]), ([y, z], [x]), ([x], [y])]
    assert interference.followers(touched) == [
        # Both who read what it wrote, and who writes there next.
        [1, 2, 3],
        # Who reads the same, who reads and who overwrites what it wrote; and its memory's next
        # writer after the reader.
        [2, 3, 4],
        [3],
        [4],
        [],
    ]
