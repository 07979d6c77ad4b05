"""Tasks of a model's other shapes, and the largest shape's task that each takes schedules from.

Both are the same layer: the same kernel over the same weights, with other extents.
"""

from __future__ import annotations

from collections.abc import Sequence

from fewtune.artifacts import TaskInfo


def twins_of(tasks: Sequence[TaskInfo]) -> dict[str, str]:
    """The twin of each task of another shape, if it has one.

    A twin computes the same, of buffers of as many axes. Of several, that with the most extents in
    common is taken: weights do not change with the shape. Ties go to the first.
    """
    own = [task for task in tasks if not task.is_of_other_shape]
    found = {}
    for task in tasks:
        if task.is_of_other_shape:
            alike = [each for each in own if _form(each) == _form(task)]
            if alike:
                found[task.name] = max(alike, key=lambda each: _in_common(each, task)).name
    return found


def _form(task: TaskInfo) -> tuple[str, str, tuple[int, ...]]:
    return task.anchor, task.dtype, tuple(map(len, task.shapes))


def _in_common(one: TaskInfo, other: TaskInfo) -> int:
    """Extents that are equal, weighted so that a buffer that is all equal counts most."""
    pairs = list(zip(one.shapes, other.shapes, strict=True))
    extents = sum(a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))
    return extents + 100 * sum(mine == theirs for mine, theirs in pairs)
