"""A batch knows what each candidate has to beat, and counts what failed once."""

from collections import Counter

from fewtune.measure.measurer import Batch
from fewtune.trial.outcome import Built, Outcome
from fewtune.workers.pool import Kept


def test_a_failure_is_counted_and_neither_kept_nor_beaten():
    builds = [Built(0, number) for number in range(2)]
    keys = [("conv", "[[], []]"), ("conv", "[[1], []]")]
    batch = Batch([[]] * 2, [None] * 2, ["a"] * 2, keys)
    failures: Counter[str] = Counter()
    kept = Kept()
    # They may end in any order, as on boards.
    batch.end(1, Outcome([1.0]), builds[1])
    batch.end(0, Outcome(None, "wrong_output"), builds[0])
    outcomes = batch.settle(failures, kept)
    assert [outcome.cause for outcome in outcomes] == ["wrong_output", None]
    assert failures == {"wrong_output": 1}
    assert kept.find(*keys[0]) is None
    assert kept.find(*keys[1]) == builds[1]
    assert batch.bar_s(0) == 1.0
