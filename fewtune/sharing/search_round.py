"""The round that searches tasks which take long and compute more slowly than others like them.

Three candidates may all be slow: the predictor errs about awkward extents, and a donor's schedule
may not suit them. Of ResNet 50's 11.5 % that sharing lost to full tuning (a Xeon), 8.3 % were seven
tasks at 200 to 290 GFLOPS, where others reached 358: the rows of 7x7 places fill no usual tile. A
text recogniser's product onto 6,625 classes kept its default schedule and took 10 % of the model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from fewtune.sharing.job import SharingRules
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState

SEARCHED: Literal["search of slow tasks"] = "search of slow tasks"

# The inner loops of these operators are the same product of a register tile, so that each may reach
# the throughput of the others.
_PRODUCTS = frozenset({"batch_matmul", "conv1d", "conv2d", "conv3d", "dense"})


class SearchRound:
    """Searches tasks, a few batches each.

    Parameters
    ----------
    session : Session
        Its journal holds which batches the round had, and gets new ones.
    rules : SharingRules
        Which tasks, and how many trials.
    """

    def __init__(self, session: Session, rules: SharingRules) -> None:
        self._session, self._rules = session, rules
        # The task of each batch, in order.
        self._batches: list[str] = []
        self._trials: Counter[str] = Counter()
        for event in session.journal.events:
            if event["kind"] == "batch" and event.get("round") == SEARCHED:
                self._batches.append(event["task"])
                self._trials[event["task"]] += len(event["trials"])

    @property
    def trials(self) -> int:
        """Candidates measured in the round."""
        return self._trials.total()

    def hold(self, states: Iterable[TaskState]) -> None:
        """Search tasks, the most promising first, as long as that saves enough.

        Parameters
        ----------
        states : iterable of TaskState
            The tasks that may be searched.
        """
        waiting = [state for state in states if not state.task.info.is_streamed]
        while waiting and not self._is_over():
            fastest = self._fastest()
            promised = [self._promised(state, fastest[_kind(state)]) for state in waiting]
            most = max(promised)
            if most < self._rules.searched_gain:
                return
            state = waiting[promised.index(most)]
            if not self._is_searched_on(state) or not self._search(state):
                waiting.remove(state)

    def _fastest(self) -> dict[tuple[str, bool], float]:
        """The highest throughput of tasks that may compute as fast as each other, by kind."""
        found: dict[tuple[str, bool], float] = {}
        for state in self._session.state.tasks.values():
            kind = _kind(state)
            found[kind] = max(found.get(kind, 0.0), state.progress.throughput)
        return found

    def _promised(self, state: TaskState, most: float) -> float:
        """The part of the model's time that a task would save at a throughput of ``most``."""
        now_s = state.progress.current_s
        if state.crashed or state.taken or now_s == math.inf:
            return -math.inf
        saved_s = now_s - state.progress.work / most
        return state.progress.weight * saved_s / self._session.state.known_latency_s

    def _saved(self, place: int) -> float:
        """The part of the model's time that a batch has saved."""
        name = self._batches[place]
        progress = self._session.state.tasks[name].progress
        # The task's last results are those of its batches in this round.
        later = self._batches[place + 1 :].count(name)
        *before, after = progress.best_s[: len(progress.best_s) - later]
        before_s = min([*before, progress.default_s or math.inf])
        saved_s = before_s - min(before_s, after)
        return progress.weight * saved_s / self._session.state.known_latency_s

    def _is_over(self) -> bool:
        """Whether the last batches saved too little."""
        rules = self._rules
        last = range(len(self._batches))[-rules.searched_patience :]
        is_enough = len(last) == rules.searched_patience
        return is_enough and all(self._saved(place) < rules.searched_least for place in last)

    def _is_searched_on(self, state: TaskState) -> bool:
        """Whether a task has trials left, and its last batch in the round saved enough."""
        name = state.task.info.name
        if name not in self._batches:
            return True
        last = max(place for place, each in enumerate(self._batches) if each == name)
        has_room = self._trials[name] < self._rules.searched_trials
        return has_room and self._saved(last) >= self._rules.searched_least

    def _search(self, state: TaskState) -> int:
        """Measure the search's next batch; return its candidates."""
        session, name = self._session, state.task.info.name
        room = min(self._rules.searched_batch, self._rules.searched_trials - self._trials[name])
        (turn,) = session.searched([state], room, {"round": SEARCHED})
        if turn.proposals:
            self._batches.append(name)
            self._trials[name] += len(turn.proposals)
        session.show(state, phase="share")
        return len(turn.proposals)


def _kind(state: TaskState) -> tuple[str, bool]:
    """Operator family, all products being one, and whether it computes in bytes."""
    info = state.task.info
    family = "product" if info.operator in _PRODUCTS else state.progress.family
    return family, bool(info.byte_flops)
