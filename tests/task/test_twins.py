"""The largest shape's task that a task of another shape takes schedules from."""

from fewtune.artifacts import TaskInfo
from fewtune.task.extract import Task, twins_of, with_shares_of_twins
from tests.made.tasks import made_task


def task(name, shapes, calls, **changed):
    info = made_task(name).info.model_dump() | {"shapes": shapes, "calls": calls} | changed
    return TaskInfo(**info)


def test_a_twin_has_the_same_weights_and_another_batch():
    tasks = [
        task("a", [[8, 32], [32, 64], [8, 64]], {"main": 1}),
        task("b", [[8, 32], [32, 128], [8, 128]], {"main": 1}),
        task("c", [[8, 32], [32, 128], [8, 128]], {"main": 1}),
        task("both", [[1, 32], [32, 1], [1, 1]], {"main": 1, "main_1": 1}),
        task("a small", [[2, 32], [32, 64], [2, 64]], {"main_1": 1}),
        task("b small", [[2, 32], [32, 128], [2, 128]], {"main_1": 1}),
        task("c_s1", [[2, 32], [32, 128], [2, 128]], {"main_1": 1}),
        task("another", [[2, 32], [32, 128], [2, 128]], {"main_1": 1}, anchor="pool"),
    ]
    # Two read weights of one size: the name says whose.
    assert twins_of(tasks) == {"a small": "a", "b small": "b", "c_s1": "c"}
    assert twins_of(tasks[:4]) == {}


def test_a_twin_counts_as_much_as_who_takes_its_schedule():
    tasks = [
        task("a", [[8, 32], [32, 64], [8, 64]], {"main": 1}, share=0.004),
        task("a_s1", [[2, 32], [32, 64], [2, 64]], {"main_1": 1}, share=0.006),
        task("b", [[8, 32], [32, 128], [8, 128]], {"main": 1}, share=0.5),
        task("b_s1", [[2, 32], [32, 128], [2, 128]], {"main_1": 1}, share=0.4),
    ]
    given = [Task(info, "") for info in tasks]
    assert [each.info.share for each in with_shares_of_twins(given)] == [0.006, 0.006, 0.5, 0.4]
