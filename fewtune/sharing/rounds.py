"""The rounds of sharing: what is on offer for tasks, measured a few tasks together at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fewtune.sharing.candidates import Offers
from fewtune.trial.trial import Trial
from fewtune.trial.worker_reply import Built, Failure
from fewtune.tuning.batch import TaskBatch, measure_together, split_cost
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState
from fewtune.workers.build_queue import Building

FIRST, SECOND, BEFORE_FINALS = "first donors", "second donors", "before finals"
# What a person who watches sees.
_PHASES = {FIRST: "share", SECOND: "share again", BEFORE_FINALS: "before finals"}
# Candidates of several tasks are built together, so that no worker waits for the other.
_MODULES_A_BATCH = 16


class _Opening(NamedTuple):
    """What is measured of one task next."""

    state: TaskState
    offers: Offers

    @property
    def turn(self) -> TaskBatch:
        return TaskBatch(self.state, [offer.proposal for offer in self.offers.likeliest])


class Rounds:
    """Holds the rounds of a session; each task has each of them once.

    Parameters
    ----------
    session : Session
        Its journal says which tasks had which round, and gets what is measured.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._had: dict[str, set[str]] = {name: set() for name in _PHASES}
        self._trials = 0
        for event in session.journal.events:
            if event["kind"] == "batch" and event.get("round"):
                self._had[event["round"]].add(event["task"])
                self._trials += len(event["trials"])

    @property
    def trials(self) -> int:
        """Candidates that were measured in all of them."""
        return self._trials

    def has_had(self, name: str, task: str) -> bool:
        """Whether a round was held for a task."""
        return task in self._had[name]

    def open(
        self, name: str, tasks: Sequence[str], offers_of: Callable[[TaskState], Offers]
    ) -> None:
        """Hold a round for those of some tasks that had none of it yet.

        Parameters
        ----------
        name : str
        tasks : sequence of str
        offers_of : callable
            What of a task is to be measured.
        """
        states = [self._session.state.tasks[t] for t in tasks if not self.has_had(name, t)]
        waiting = iter([state for state in states if not state.crashed])
        while self._batch_of(name, waiting, offers_of):
            pass

    def _batch_of(
        self,
        name: str,
        waiting: Iterator[TaskState],
        offers_of: Callable[[TaskState], Offers],
    ) -> bool:
        """Measure what is on offer for the next few tasks, if there are any."""
        session = self._session
        batch: list[_Opening] = []
        with session.measurer.building() as modules:
            for state in waiting:
                session.announce(state)
                with session.measurer.phases.timed("search_s"):
                    batch.append(_Opening(state, offers_of(state)))
                    modules.add(batch[-1].turn.modules)
                if len(modules) >= _MODULES_A_BATCH:
                    break
            if batch:
                self._measure(name, batch, modules)
        return bool(batch)

    def _measure(
        self, name: str, batch: list[_Opening], modules: Building[Built | Failure]
    ) -> None:
        """Measure a batch and note it; then learn from it, each task for itself."""
        session = self._session
        turns = [opening.turn for opening in batch]
        measured = measure_together(session.measurer, turns, modules)
        parts = split_cost(session.spent(), [len(turn.proposals) for turn in turns])
        for opening, turn, outcomes, spent in zip(batch, turns, measured, parts, strict=True):
            self._note_round(name, opening, turn.trials(outcomes), spent)
        for turn, outcomes in zip(turns, measured, strict=True):
            # A crash while features are extracted is to be laid to the right task.
            session.announce(turn.state)
            with session.measurer.phases.timed("model_update_s"):
                times_s = [outcome.median_s for outcome in outcomes]
                session.searches.of(turn.state).learn(turn.proposals, times_s)
            session.show(turn.state, phase=_PHASES[name])

    def _note_round(
        self, name: str, opening: _Opening, trials: list[Trial], spent: dict[str, Any]
    ) -> None:
        likeliest = opening.offers.likeliest
        task = opening.state.task.info.name
        self._had[name].add(task)
        self._trials += len(trials)
        self._session.note(
            {
                "kind": "batch",
                "task": task,
                "round": name,
                "donors": [offer.donor for offer in likeliest],
                "ranks": [offer.rank for offer in likeliest],
                "offered": opening.offers.offered,
                "reasons": opening.offers.reasons,
                **spent,
                "trials": [trial.as_json() for trial in trials],
            }
        )
