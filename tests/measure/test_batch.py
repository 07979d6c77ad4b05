"""A batch knows what each candidate has to beat, and counts what failed once."""

from collections import Counter

from fewtune.measure.measurer import Batch
from fewtune.trial.outcome import Outcome


def test_a_failure_is_counted_and_not_beaten():
    batch = Batch([[]] * 3, [None, None, 0.5], ["a", "a", "b"])
    failures: Counter[str] = Counter()
    # They may end in any order, as on boards.
    batch.end(1, Outcome([1.0]))
    batch.end(0, Outcome(None, "wrong_output"))
    batch.end(2, Outcome([2.0]))
    outcomes = batch.settle(failures)
    assert [outcome.cause for outcome in outcomes] == ["wrong_output", None, None]
    assert failures == {"wrong_output": 1}
    # Another race does not lower it.
    assert (batch.bar_s(0), batch.bar_s(2)) == (1.0, 0.5)
