"""The largest shape's task that a task of another shape takes schedules from."""

from fewtune.artifacts import TaskInfo
from fewtune.task.extract import twins_of
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
