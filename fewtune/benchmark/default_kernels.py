"""The default schedules of tasks that were set aside: compiled beside other work, then measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from fewtune.artifacts import Fingerprint, Selection
from fewtune.measure.device import device_of
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.runtime.target import target_from_json
from fewtune.schedule.defaults.default import default_schedule
from fewtune.task.extract import Task
from fewtune.trial.worker_reply import Built, Failure
from fewtune.workers.build_queue import Building


class DefaultKernels:
    """Measures the tasks that were set aside; the workers end with the block.

    Parameters
    ----------
    tasks : sequence of Task
        All tasks of the model.
    selection : Selection
    in_place : mapping of int
        Number of calls that the library leaves out, by task: a task that is never called is not
        measured.
    fingerprint : Fingerprint
    cold_weights : bool
        Whether the other tasks were measured with their weights in memory.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        selection: Selection,
        in_place: Mapping[str, int],
        fingerprint: Fingerprint,
        *,
        cold_weights: bool,
    ) -> None:
        aside = set(selection.set_aside)
        target = target_from_json(fingerprint.target)
        called = [
            task
            for task in tasks
            if task.info.name in aside and task.info.weight > in_place.get(task.info.name, 0)
        ]
        pairs = [(task, default_schedule(task.mod, target)) for task in called]
        self._ready = [(task, schedule) for task, schedule in pairs if schedule is not None]
        self._device = device_of(fingerprint)
        self._cold_weights = cold_weights
        self._contexts = ExitStack()
        self._started: tuple[Measurer, Building[Built | Failure]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._contexts.close()

    def compile(self) -> None:
        """Begin to compile, in other processes."""
        if self._started is None and self._ready:
            pool = self._contexts.enter_context(self._device.open())
            measurer = self._device.measurer(pool, cold_weights=self._cold_weights)
            modules = self._contexts.enter_context(measurer.building())
            modules.add([schedule.mod for _, schedule in self._ready])
            self._started = measurer, modules

    def wait(self) -> None:
        """Wait until what began to compile is compiled: measurements need a quiet machine."""
        if self._started is not None:
            self._started[1].finished()

    def times_ms(self) -> dict[str, float]:
        """Milliseconds of one call by task; a task that cannot be measured is missing."""
        self.compile()
        if self._started is None:
            return {}
        measurer, modules = self._started
        tasks = [task for task, _ in self._ready]
        outcomes = measurer.measure(
            modules,
            [module_specs(task.mod) for task in tasks],
            [None] * len(tasks),
            races=[task.info.name for task in tasks],
        )
        return {
            task.info.name: outcome.median_s * 1e3
            for task, outcome in zip(tasks, outcomes, strict=True)
            if outcome.run_s
        }
