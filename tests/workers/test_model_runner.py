"""What finals charge a contender with: what calls after it take for its sake, but for chance."""

import numpy as np
import pytest

from fewtune.workers.model_runner import charged, followers


def runs(count: int, contenders: int) -> list[dict[str, int]]:
    return [{"writer": run % contenders, "reader": 0} for run in range(count)]


def test_who_makes_its_reader_slow_is_charged_with_it():
    picked = runs(16, 2)
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal((16, 2))
    # The second contender is faster by 0.1, and its reader slower by 0.5.
    kind_s, rude_s = np.array([1.0, 2.0]), np.array([0.9, 2.5])
    times_s = np.stack([rude_s if run["writer"] else kind_s for run in picked]) * noise
    samples = charged(times_s, ["writer", "reader"], picked, [{1}, set()])
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
        samples = charged(times_s, ["writer", "reader"], picked, [{1}, set()])
        charges += [each[0] - 1.0 for each in samples["writer"]]
    # Of six figures each the deviation itself is rough: some pass, most do not.
    assert np.mean(np.array(charges) == 0.0) > 0.8


def test_what_a_reader_usually_takes_is_that_of_its_own_contender():
    # The reader's second contender takes ten times the first one's time, after either writer.
    picked = [{"writer": run % 2, "reader": run // 2 % 2} for run in range(16)]
    times_s = np.array([[1.0, 1.0 + 9.0 * run["reader"]] for run in picked])
    samples = charged(times_s, ["writer", "reader"], picked, [{1}, set()])
    assert samples["writer"] == [[1.0] * 8, [1.0] * 8]
    assert samples["reader"] == [[1.0] * 8, [10.0] * 8]


def test_followers_are_who_finds_memory_where_a_call_left_it():
    x, y, z = 1, 2, 3
    touched = [([], [x]), ([x], [y]), ([x], [z]), ([y, z], [x]), ([x], [y])]
    assert followers(touched) == [
        # Both who read what it wrote, and who writes there next.
        [1, 2, 3],
        # Who reads the same, who reads and who overwrites what it wrote; and its memory's next
        # writer after the reader.
        [2, 3, 4],
        [3],
        [4],
        [],
    ]
