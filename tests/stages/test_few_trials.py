"""With few trials a task, selective tuning says that it does not pay, and ends as full would."""

from types import SimpleNamespace

import pytest

from fewtune.model_check.report import at_most_full
from fewtune.options import ShareOptions


@pytest.mark.parametrize(
    ("method", "trials", "given_s", "budget_s"),
    [
        ("cliques", 4, None, 21.0),
        ("cliques", 4, 5.0, 5.0),
        ("cliques", 4, 50.0, 21.0),
        ("cliques", 8, None, None),
        ("all", 4, None, None),
    ],
)
def test_the_budget_is_full_tunings_time(method, trials, given_s, budget_s):
    selection = SimpleNamespace(method=method, worth=["task"] * 10)
    tuned = SimpleNamespace(trials_per_task=trials, trials=8, tuning_s=4.0)
    found = at_most_full(ShareOptions(budget_s=given_s), selection, tuned)
    assert found.budget_s == budget_s
