"""The rounds of sharing: what tasks take from donors, a few tasks measured together at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fewtune.schedule.transfer import Donation
from fewtune.tuning.feed import Building
from fewtune.tuning.handle import Built, Failure
from fewtune.tuning.log import Trial
from fewtune.tuning.offers import Offers, offers_for
from fewtune.tuning.options import ShareOptions
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState
from fewtune.tuning.together import Turn, measure_together, parted

FIRST, SECOND = "first donors", "second donors"
# Candidates of several tasks are built together, so that no worker waits for the other.
_MODULES_A_BATCH = 16


class _Opening(NamedTuple):
    """What is measured of one task next."""

    state: TaskState
    offers: Offers

    @property
    def turn(self) -> Turn:
        return Turn(self.state, [offer.proposal for offer in self.offers.likeliest])


class Rounds:
    """Holds the rounds of a session; each task has each of them once.

    Parameters
    ----------
    session : Session
        Its journal says which tasks had which round, and gets what is measured.
    options : ShareOptions
    given : callable
        What a donor, by its name, has to give, best first.
    for_finals : bool
        Whether finals in the model are to come (`fewtune.tuning.offers`).
    """

    def __init__(
        self,
        session: Session,
        options: ShareOptions,
        given: Callable[[str], list[Donation]],
        *,
        for_finals: bool,
    ) -> None:
        self._session, self._options, self._given = session, options, given
        self._for_finals = for_finals
        self._had: dict[str, set[str]] = {FIRST: set(), SECOND: set()}
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

    def open(self, name: str, donors: dict[str, list[str]]) -> None:
        """Hold a round, given each task's donors."""
        tasks = self._session.state.tasks
        states = [tasks[task] for task in donors if not self.has_had(name, task)]
        waiting = iter([state for state in states if not state.crashed])
        while self._batch_of(name, waiting, donors):
            pass

    def _batch_of(
        self, name: str, waiting: Iterator[TaskState], donors: dict[str, list[str]]
    ) -> bool:
        """Measure what the next few tasks take, if there are any."""
        session = self._session
        batch: list[_Opening] = []
        with session.measurer.building() as modules:
            for state in waiting:
                session.announce(state)
                with session.measurer.phases.timed("search_s"):
                    batch.append(self._opening(name, state, donors[state.task.info.name]))
                    modules.add(batch[-1].turn.modules)
                if len(modules) >= _MODULES_A_BATCH:
                    break
            if batch:
                self._measure(name, batch, modules)
        return bool(batch)

    def _opening(self, name: str, state: TaskState, donors: list[str]) -> _Opening:
        offers = offers_for(
            self._session.search_of(state),
            [(donor, self._given(donor)) for donor in donors],
            self._options,
            state.task.info,
            draws=name == FIRST,
            for_finals=name == FIRST and self._for_finals,
        )
        return _Opening(state, offers)

    def _measure(
        self, name: str, batch: list[_Opening], modules: Building[Built | Failure]
    ) -> None:
        """Measure a batch and note it; then learn from it, each task for itself."""
        session = self._session
        turns = [opening.turn for opening in batch]
        measured = measure_together(session.measurer, turns, modules)
        parts = parted(session.spent(), [len(turn.proposals) for turn in turns])
        for opening, turn, outcomes, spent in zip(batch, turns, measured, parts, strict=True):
            self._note_round(name, opening, turn.trials(outcomes), spent)
        for turn, outcomes in zip(turns, measured, strict=True):
            # A crash while features are extracted is to be laid to the right task.
            session.announce(turn.state)
            with session.measurer.phases.timed("model_update_s"):
                times_s = [outcome.median_s for outcome in outcomes]
                session.search_of(turn.state).learn(turn.proposals, times_s)
            session.show(turn.state, phase="share" if name == FIRST else "share again")

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
