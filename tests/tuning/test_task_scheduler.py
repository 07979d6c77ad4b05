"""Which task gets the next batch, against values worked out by hand."""

import pytest

from fewtune.tuning.task_scheduler import TaskProgress, best_rates, gradient, in_order
from tests.made.banks import task_info

INF = float("inf")


def task(
    name: str,
    best_s: list[float],
    weight: int = 1,
    finished: str | None = None,
    flops: float = 0.0,
    family: str = "",
) -> TaskProgress:
    return TaskProgress(name, weight, flops, family, best_s=best_s, finished=finished)


@pytest.mark.parametrize(
    ("best_s", "weight", "expected"),
    [
        # One batch: no past yet, 0.8 * 10 / 1.
        ([10.0], 1, 8.0),
        # Two: 0.2 * (10 - 8) / 1 + 0.8 * 8 / 2.
        ([10.0, 8.0], 1, 0.4 + 3.2),
        # Five: the past is the last three steps, 0.2 * (9 - 6) / 3 + 0.8 * 6 / 5.
        ([20.0, 9.0, 8.0, 7.0, 6.0], 1, 0.2 + 0.96),
        ([20.0, 9.0, 8.0, 7.0, 6.0], 7, 7 * 1.16),
        # The last three batches brought nothing: the hope for more is halved twice.
        ([8.0, 6.0, 6.0, 6.0, 6.0], 1, 0.2 * 0 + 0.8 * 6 / 5 / 4),
        # The first valid schedule came late: a fall from infinity is no figure.
        ([INF, 4.0], 2, 2 * 0.8 * 4.0 / 2),
        ([INF, INF, INF, INF, 5.0], 1, 0.8 * 5.0 / 5),
        # Nothing known yet, nothing known for long.
        ([], 3, INF),
        ([INF, INF], 3, INF),
        ([INF, INF, INF], 3, 3e-12),
    ],
)
def test_the_gradient_is_what_a_batch_may_save(best_s, weight, expected):
    assert gradient(task("a", best_s, weight)) == pytest.approx(expected)


def test_the_steepest_task_is_next():
    slow_and_converged = task("slow", [9.0] * 20)
    falling = task("falling", [10.0, 8.0])
    assert gradient(slow_and_converged) < gradient(falling)
    assert in_order([slow_and_converged, falling], "gradient")[0] is falling
    often_called = task("often", [10.0, 8.0], weight=40)
    assert in_order([falling, often_called], "gradient")[0] is often_called


def test_what_memory_decides_is_held_to_its_own_kind():
    product = task_info("product", workload="a", operator="dense", flops=400.0)
    streamed = task_info("streamed", workload="b", operator="dense", flops=2.0)
    found = [TaskProgress.of(info) for info in (product, streamed)]
    assert [(each.family, each.work) for each in found] == [
        ("dense", 400.0),
        ("streamed dense", 4.0),
    ]
    for each in found:
        each.best_s = [2.0]
    # 200 operations a second of the one would leave the other 99 % of its time to gain.
    rates = best_rates(found)
    assert rates == {"dense": 250.0, "streamed dense": 3.0}
    assert gradient(found[1], rates["streamed dense"]) == pytest.approx(0.8 * 2 / 3)


def test_a_task_is_held_to_what_similar_ones_reach():
    convolutions = [
        task("quick", [1.0], flops=100.0, family="conv2d"),
        task("slow", [1.0], flops=90.0, family="conv2d"),
    ]
    depthwise = [
        task("near", [1.0], flops=19.0, family="depthwise_conv2d"),
        task("best", [1.0], flops=20.0, family="depthwise_conv2d"),
    ]
    lone = task("lone", [1.0], flops=10.0, family="dense")
    waiting = task("waiting", [], flops=10.0, family="pool")
    rates = best_rates([*convolutions, *depthwise, lone, waiting])
    # A family of one has some way to go; of one that nothing is known of, nothing is expected.
    assert rates == {"conv2d": 100.0, "depthwise_conv2d": 20.0, "dense": 12.5}
    # No more than the machine can do; what was measured was reached, whatever that is said to be.
    assert best_rates([lone], 11.0) == {"dense": 11.0}
    assert best_rates([lone, *depthwise], 5.0) == {"dense": 10.0, "depthwise_conv2d": 20.0}
    # At 100 a depthwise convolution would have four fifths to gain; at 20 a twentieth.
    assert in_order([*convolutions, *depthwise], "gradient")[0].name == "slow"
    assert in_order(depthwise, "gradient", {"depthwise_conv2d": 100.0})[0].name == "near"


def test_a_representative_counts_for_its_cluster():
    alone, leader = task("alone", [2.0]), task("leader", [1.0])
    assert in_order([alone, leader], "gradient")[0] is alone
    leader.stands_for = 5.0
    assert gradient(leader) == pytest.approx(5 * 0.8)
    assert in_order([alone, leader], "gradient")[0] is leader


def test_every_task_is_tried_before_any_is_tried_twice():
    tasks = [task("b", []), task("a", []), task("c", [])]
    order = []
    for _ in range(3):
        chosen = in_order(tasks, "gradient")[0]
        order.append(chosen.name)
        chosen.best_s.append(1.0)
    assert order == ["a", "b", "c"]


def test_a_hopeless_task_comes_last_but_comes():
    hopeless = task("a", [INF] * 3, weight=1000)
    assert in_order([hopeless, task("b", [1e-6] * 50)], "gradient")[0].name == "b"
    assert in_order([hopeless], "gradient")[0] is hopeless


def test_round_robin_goes_by_batches_then_names():
    tasks = [task("b", [1.0]), task("c", []), task("a", [100.0])]
    order = []
    for _ in range(5):
        chosen = in_order(tasks, "round_robin")[0]
        order.append(chosen.name)
        chosen.best_s.append(1.0)
    assert order == ["c", "a", "b", "c", "a"]


@pytest.mark.parametrize("allocation", ["gradient", "round_robin"])
def test_finished_tasks_get_nothing(allocation):
    finished = task("a", [], finished="design space exhausted")
    waiting = task("b", [1.0, 0.5])
    assert in_order([finished, waiting], allocation)[0] is waiting
    assert in_order([finished], allocation) == in_order([], allocation) == []


@pytest.mark.parametrize("allocation", ["gradient", "round_robin"])
def test_ties_go_by_name_whatever_the_order(allocation):
    first, second = task("a", [2.0, 1.0]), task("b", [2.0, 1.0])
    assert in_order([first, second], allocation)[0] is first
    assert in_order([second, first], allocation)[0] is first


def test_of_tasks_that_nothing_was_searched_of_the_heaviest_comes_first():
    light, heavy = task("a", []), task("z", [], weight=10)
    light.default_s = heavy.default_s = 1.0
    assert [each.name for each in in_order([light, heavy], "gradient")] == ["z", "a"]
    # A representative for its cluster; one of which nothing is known before all.
    light.stands_for = 20.0
    assert in_order([light, heavy, task("y", [])], "gradient")[0].name == "y"
    assert in_order([light, heavy], "gradient")[0].name == "a"
