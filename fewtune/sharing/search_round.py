"""The round that searches heavy tasks whose default schedule is still the fastest.

A task's share of time is estimated before anything is measured. The estimate is too low if the
default schedule is poor: a text recogniser's product onto 6,625 classes was estimated at 4 % and
took 10.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from fewtune.sharing.rules import SharingRules
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState

SEARCHED: Literal["search of slow defaults"] = "search of slow defaults"


class SearchRound:
    """Searches tasks, a few batches each, once.

    Parameters
    ----------
    session : Session
        Its journal holds which trials the round had, and gets new ones.
    rules : SharingRules
        Which tasks, and how many trials.
    """

    def __init__(self, session: Session, rules: SharingRules) -> None:
        self._session, self._rules = session, rules
        self._had: Counter[str] = Counter()
        for event in session.journal.events:
            if event["kind"] == "batch" and event.get("round") == SEARCHED:
                self._had[event["task"]] += len(event["trials"])

    @property
    def trials(self) -> int:
        """Candidates measured in the round."""
        return self._had.total()

    def hold(self, states: Iterable[TaskState]) -> None:
        """Search the tasks whose default schedule is still the best."""
        for state in states:
            name = state.task.info.name
            if name not in self._had and not self._is_slow(state):
                continue
            while not state.crashed and (room := self._rules.searched_trials - self._had[name]) > 0:
                if not self._search(state, room):
                    break

    def _is_slow(self, state: TaskState) -> bool:
        """Whether a task keeps its default schedule, takes long with it, and computes slowly."""
        default, progress = state.default, state.progress
        if state.crashed or state.taken or not default or not default.run_s:
            return False
        if state.best_s < default.outcome.median_s or state.task.info.is_streamed:
            return False
        known = self._session.state
        part = progress.weight * progress.current_s / known.known_latency_s
        computing = (s.progress for s in known.tasks.values() if not s.task.info.is_streamed)
        most = max(each.throughput for each in computing)
        rules = self._rules
        return part >= rules.searched_part and progress.throughput < rules.searched_rate * most

    def _search(self, state: TaskState, room: int) -> int:
        """Measure the search's next batch; return its candidates."""
        session = self._session
        (turn,) = session.searched([state], room, {"round": SEARCHED})
        self._had[state.task.info.name] += len(turn.proposals)
        session.show(state, phase="share")
        return len(turn.proposals)
