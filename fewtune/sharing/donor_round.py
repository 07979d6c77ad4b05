"""The round in which tasks measure the donors' schedules, several tasks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from fewtune.artifacts import RoundName
from fewtune.sharing.candidates import Offers
from fewtune.tuning.batch import TaskBatch
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState

FIRST: Literal["first donors"] = "first donors"
OTHER_SHAPES: Literal["other shapes"] = "other shapes"
# Candidates of several tasks are built together, so that no worker is idle.
_MODULES_A_BATCH = 16


class _Opening(NamedTuple):
    """The candidates of one task, before they are measured."""

    state: TaskState
    offers: Offers

    @property
    def turn(self) -> TaskBatch:
        proposals = [offer.proposal for offer in self.offers.likeliest]
        return TaskBatch(self.state, proposals, proposals)

    @property
    def event_fields(self) -> dict[str, Any]:
        """What its event in the journal holds besides trials."""
        return {
            "donors": [offer.donor for offer in self.offers.likeliest],
            "ranks": [offer.rank for offer in self.offers.likeliest],
            "offered": self.offers.offered,
            "reasons": self.offers.reasons,
        }


class DonorRound:
    """Measures each task's offers, once.

    Parameters
    ----------
    session : Session
        Its journal holds which tasks had the round, and gets the trials.
    name : str
        Of the round, in the journal.
    """

    def __init__(self, session: Session, name: RoundName = FIRST) -> None:
        self._session = session
        self._name = name
        self._had: set[str] = set()
        self._trials = 0
        for event in session.journal.events:
            if event["kind"] == "batch" and event.get("round") == name:
                self._had.add(event["task"])
                self._trials += len(event["trials"])

    @property
    def trials(self) -> int:
        """Candidates measured in the round."""
        return self._trials

    def has_had(self, task: str) -> bool:
        """Whether a task had the round."""
        return task in self._had

    def hold(self, tasks: Sequence[str], offers_of: Callable[[TaskState], Offers]) -> None:
        """Hold the round for the tasks that did not have it yet.

        Parameters
        ----------
        tasks : sequence of str
        offers_of : callable
            Gives the candidates of a task.
        """
        states = [self._session.state.tasks[t] for t in tasks if not self.has_had(t)]
        waiting = iter([state for state in states if not state.crashed])
        while self._batch_of(waiting, offers_of):
            pass

    def _batch_of(
        self, waiting: Iterator[TaskState], offers_of: Callable[[TaskState], Offers]
    ) -> bool:
        """Measure the offers of the next few tasks; return whether there were any."""
        session = self._session
        batch: list[_Opening] = []
        for state in waiting:
            session.announce(state)
            with session.measurer.phases.timed("search_s"):
                batch.append(_Opening(state, offers_of(state)))
                proposals = batch[-1].turn.proposals
                session.measurer.build_ahead([each.schedule.mod for each in proposals])
            if sum(len(opening.turn.proposals) for opening in batch) >= _MODULES_A_BATCH:
                break
        if batch:
            self._measure(batch)
        return bool(batch)

    def _measure(self, batch: list[_Opening]) -> None:
        """Measure a batch, note it, and learn from it, each task for itself."""
        session = self._session
        turns = [opening.turn for opening in batch]
        fields = [{"round": self._name, **opening.event_fields} for opening in batch]
        measured = session.take_turns(turns, fields)
        for turn in turns:
            self._had.add(turn.state.task.info.name)
            self._trials += len(turn.proposals)
        for turn, outcomes in zip(turns, measured, strict=True):
            # Extracting features may crash: that is then the fault of this task.
            session.announce(turn.state)
            with session.measurer.phases.timed("model_update_s"):
                times_s = [outcome.median_s for outcome in outcomes]
                session.searches.of(turn.state).learn(turn.proposals, times_s)
            session.show(turn.state, phase="share")
