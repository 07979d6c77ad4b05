"""The journal of a session: events go to the journal first, then into the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewtune.machine.steal_time import stolen_s
from fewtune.measure.measurer import Measurer
from fewtune.progress.progress import Progress
from fewtune.storage.journal import Journal
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.run_state import RunState
from fewtune.tuning.task_state import TaskState


class JournaledRun:
    """A run whose every step is in a journal, from which it resumes.

    Parameters
    ----------
    state : RunState
        Takes over what the journal holds already.
    journal : Journal
    progress : Progress
    measurer : Measurer
        Its phases and repeats are noted with the events they belong to.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        state: RunState,
        journal: Journal,
        progress: Progress,
        measurer: Measurer,
        clock: Callable[[], float],
    ) -> None:
        self.state = state
        self.state.resume(journal)
        self.journal = journal
        self.progress = progress
        self.measurer = measurer
        self._clock = clock
        self._began_s = clock() - self.state.elapsed_s
        self._unstolen_s = stolen_s() - self.state.stolen_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return self._clock() - self._began_s

    def announce(self, state: TaskState) -> None:
        """Note the task that comes next: a crash is then known to be its fault."""
        self.journal.append({"kind": "start", "task": state.task.info.name})

    def note(self, event: dict[str, Any]) -> None:
        """Journal an event, then take it in exactly as a resumed run would."""
        kept_s = stolen_s() - self._unstolen_s
        spent = {"elapsed_s": round(self.elapsed_s, 3), "stolen_s": round(kept_s, 3)}
        event = {**spent, **event}
        self.journal.append(event)
        self.state.take(event)

    def note_default(self, state: TaskState, trial: Trial | None) -> None:
        """Note the result of the default schedule; None if there is none."""
        trial = trial or Trial(trace_key(None), None, "no_default_schedule")
        self.note({"kind": "default", "task": state.task.info.name, "trial": trial.as_json()})

    def note_end(self, state: TaskState, why: str) -> None:
        """Note why a task is searched no further."""
        self.note({"kind": "end", "task": state.task.info.name, "why": why})

    def spent(self) -> dict[str, Any]:
        """The cost of a batch, for its event: seconds by phase, and repeated measurements."""
        phases, self.measurer.phases = self.measurer.phases, Phases()
        repeats, self.measurer.repeats = self.measurer.repeats, 0
        return {"phases": phases.as_json(), "repeats": repeats}
