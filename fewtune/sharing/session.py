"""Sharing: a session whose tasks take schedules of other tasks, or of a bank.

1. A task that a bank holds takes its schedule from there. Only its outputs are checked.
2. Every other task that is not tuned itself measures a few candidates: the best schedules of its
   donor, moved into its own design space, and some drawn by rule. The predictor chooses which, or a
   cost model that learnt from the donors' trials.
3. A task that seems small measures its default schedule first. It takes candidates only if that
   takes much of the model's measured time.
4. A task far below the throughput of the best similar one also measures its default schedule, and
   keeps it if nothing is faster.
5. A task that keeps its default schedule and takes much of the model's time is searched
   (`fewtune.sharing.search_round`).
6. The fastest few of each task take turns in the model (`fewtune.finals.finals`). If that is not
   possible, they take turns alone (`fewtune.tuning.remeasure`).
7. A task of another shape of the model takes what the largest shape's task like it has then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from fewtune.bank.bank import Bank
from fewtune.finals.finalists import contenders_of
from fewtune.finals.finals import Final, Finals
from fewtune.options import TuneOptions
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import donation_of, move
from fewtune.search.warm_start import teach
from fewtune.sharing.candidates import Offers, offers_for
from fewtune.sharing.donor_round import OTHER_SHAPES, DonorRound
from fewtune.sharing.job import ShareJob
from fewtune.sharing.search_round import SearchRound
from fewtune.trial.outcome import RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.job import TuneJob, Workplace
from fewtune.tuning.remeasure import MOST_IN_DUEL
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import TaskState
from fewtune.util.switches import is_on


def behind(states: Iterable[TaskState], rates: Mapping[str, float], part: float) -> list[TaskState]:
    """Tasks below a part of the throughput of similar ones.

    Parameters
    ----------
    states : iterable of TaskState
    rates : mapping of float
        Throughput that each operator family may reach.
    part : float
        Of that throughput.
    """
    return [
        state
        for state in states
        if state.progress.throughput < part * rates.get(state.progress.family, float("inf"))
    ]


KNOWN: Literal["known"] = "known"
# Schedules of a twin that are moved, and how many of them are measured: its best, unless the
# predictor doubts it there.
_TWIN_DONATIONS, _TWIN_TRIALS = 3, 1
# Cost models learn from so many trials of a donor: half its best, half of the rest.
_TAUGHT = 48


class Sharing(Session):
    """Gives tasks schedules of their donors.

    Parameters
    ----------
    job : ShareJob
        Which task takes schedules of which donors, and by which rules.
    place : Workplace
    finals : Finals, optional
        Chooses among the best schedules of each task in the end.
    """

    def __init__(self, job: ShareJob, place: Workplace, finals: Finals | None = None) -> None:
        sharing = job.options
        options = TuneOptions(
            trials_per_task=sharing.trials_per_task, predictor=sharing.predictor, seed=sharing.seed
        )
        by_name = {task.info.name: task for task in place.tasks}
        named = [*job.takers, *job.tuned]
        super().__init__(
            TuneJob(named, options, cold_weights=job.cold_weights),
            replace(place, tasks=[by_name[name] for name in named]),
            earlier=job.tuned,
        )
        self.takers = job.takers
        self.donations = job.donations
        self._known = job.known
        self._small, self._twins = frozenset(job.small), frozenset(job.twins)
        self._rules = job.rules
        self._bank = job.bank
        self._tuned = job.tuned
        self.sharing = sharing
        self._in_model = InModel(finals, self)
        self._round = DonorRound(self)
        self._last_round = DonorRound(self, OTHER_SHAPES)
        self._searched = SearchRound(self, job.rules)

    @property
    def total_trials(self) -> int:
        """Trials to be measured, as far as known."""
        searched = sum(state.taken is None for state in self._takers() if not self._is_small(state))
        offered = max(self._round.trials, self.sharing.trials_per_task * searched)
        return offered + self._searched.trials + self._last_round.trials

    def is_done(self) -> bool:
        """Whether the journal is of a session that ended."""
        return self.state.stopped_by is not None

    def search(self) -> str:
        """Measure the donors' schedules, and the defaults of tasks that these leave slow."""
        self._take_known()
        rest = [state for state in self._takers() if state.taken is None]
        if not rest:
            return "nothing_to_tune"
        with self.measurer.phases.timed("model_update_s"):
            self._teach()
        self._hold([state for state in rest if not self._is_small(state)])
        small = [state for state in rest if self._is_small(state)]
        self.measure_defaults(list(filter(self._is_small, self.state.without_default())))
        self._hold([state for state in small if self._part(state) >= self._rules.small_part])
        self._measure_doubtful(self._takers())
        if is_on("search_of_slow_tasks"):
            self._searched.hold(self._takers())
        return "trials"

    def conclude(self) -> None:
        """Hold finals in the model or, if there are none, duels; then serve other shapes."""
        if not self._in_model.decides():
            self.hold_duels(self._takers())
        twins = [name for name in self.takers if name in self._twins]
        if twins:
            self._last_round.hold(twins, self._offers_of_twin)
            self._measure_doubtful([self.state.tasks[name] for name in twins])

    def _measure_doubtful(self, states: list[TaskState]) -> None:
        """Measure the default schedules of those tasks that are slower than similar ones."""
        names = {state.task.info.name for state in states}
        without = [s for s in self.state.without_default() if s.task.info.name in names]
        self.measure_defaults(behind(without, self.rates(), self._rules.doubtful))

    def finalists(self, state: TaskState) -> list[Trial]:
        """The trials of a task that are measured again, if it takes enough of the model's time."""
        if state.taken is not None or not state.ranked():
            return []
        return contenders_of(state.ranked(), self._part(state), MOST_IN_DUEL, self._rules.finalists)

    def _part(self, state: TaskState) -> float:
        """The part of the model's measured time that a task takes."""
        if state.progress.current_s == math.inf:
            return 0.0
        return state.progress.weight * state.progress.current_s / self.state.known_latency_s

    def _is_small(self, state: TaskState) -> bool:
        return state.task.info.name in self._small

    def _hold(self, states: list[TaskState]) -> None:
        """Measure the candidates of tasks."""
        self._round.hold([state.task.info.name for state in states], self._offers_of)

    def _most_of(self, state: TaskState) -> int:
        """Candidates of a searched task's next batch: its trials are not those of sharing."""
        return self.options.batch_size

    def _offers_of(self, state: TaskState) -> Offers:
        donors = self.takers[state.task.info.name]
        return offers_for(
            self.searches.of(state),
            [(donor, self.donations.get(donor, [])) for donor in donors],
            self.sharing,
            state.task.info,
            for_finals=self._in_model.can_be_asked,
        )

    def _offers_of_twin(self, state: TaskState) -> Offers:
        """The schedules that the twin has, the best first; none if it keeps its default."""
        (name,) = self.takers[state.task.info.name]
        twin = self.state.tasks[name]
        default = twin.default.key if twin.default is not None else None
        best = twin.ranked()[:_TWIN_DONATIONS]
        if not best or best[0].key == default:
            return Offers([], 0, {})
        donations = [donation_of(twin.task.mod, each.trace) for each in best if each.key != default]
        return offers_for(
            self.searches.of(state),
            [(name, donations)],
            self.sharing.model_copy(update={"trials_per_task": _TWIN_TRIALS}),
            state.task.info,
        )

    def _teach(self) -> None:
        """Let cost model and predictor learn from the donors' trials, and from the bank's."""
        teach(self.searches.knowledge, self._taught())
        if self._bank is not None:
            Bank.read(self._bank).teach(self.searches.knowledge.cost_model)

    def _taught(self) -> Iterator[tuple[SearchSpace, list[Trial]]]:
        """The donors' trials, one donor at a time: a donor on which TVM crashes is left out."""
        for name, prior in self._tuned.items():
            state = self.state.tasks[name]
            if not state.crashed and not state.progress.finished:
                self.announce(state)
                yield self.searches.space_of(state), _spread(prior.trials)

    def _takers(self) -> list[TaskState]:
        """The tasks of the largest shape that take schedules."""
        return [self.state.tasks[name] for name in self.takers if name not in self._twins]

    def _take_known(self) -> None:
        """Take the bank's schedules of these very tasks, with their times there.

        Each is run once and its outputs are compared: the bank may come from an earlier version or
        another user. A task whose schedule is wrong is searched like any other.
        """
        found = []
        for name, known in self._known.items():
            state = self.state.tasks[name]
            if state.taken is not None or state.crashed or self._round.has_had(name):
                continue
            self.announce(state)
            with self.measurer.phases.timed("search_s"):
                (made,) = move(self.donations[known.donor][:1], self.searches.space_of(state))
            if made.schedule is None:
                # The schedule cannot be moved: the task is searched like any other.
                continue
            trial = Trial(trace_key(made.schedule.trace), [known.latency_ms / 1e3], None)
            found.append((state, trial, made.schedule.mod))
        if not found:
            return
        failures = self.measurer.check(
            [module for _, _, module in found], [state.check for state, _, _ in found]
        )
        taken = 0
        for (state, trial, _), failure in zip(found, failures, strict=True):
            name = state.task.info.name
            if failure is not None:
                fault = failure.message or failure.cause
                self.progress.say(f"{name}: the bank's schedule is not taken: {fault}")
                continue
            self.note({"kind": "known", "task": name, "trial": trial.as_json()})
            taken += 1
        if taken:
            self.note({"kind": "phases", "round": KNOWN, **self.spent()})
            self.progress.say(f"{taken} of {len(self.takers)} tasks are known from the bank")


def _spread(trials: list[Trial]) -> list[Trial]:
    """A sample of trials, given fastest first: half the fastest, half spread over the rest."""
    if len(trials) <= _TAUGHT:
        return trials
    best, rest = trials[: _TAUGHT // 2], trials[_TAUGHT // 2 :]
    count = _TAUGHT - len(best)
    return best + [rest[place * len(rest) // count] for place in range(count)]


class InModel:
    """Holds finals in the model once, at the end, where the device can.

    Those in the journal are not held again, even if they failed: they would fail again.

    Parameters
    ----------
    finals : Finals or None
        None where no finals can be held.
    session : Session
        Its journal gets the results.
    """

    def __init__(self, finals: Finals | None, session: Session) -> None:
        self._finals, self._session = finals, session
        events = session.journal.events
        held = [event["finals"] for event in events if event["kind"] == "in_model"]
        self._decided: bool | None = any(held) if held else None

    @property
    def can_be_asked(self) -> bool:
        """Whether the session ends with finals, unless these fail."""
        return self._finals is not None

    def decides(self) -> bool:
        """Hold finals, unless they were held; return whether they chose the schedules."""
        if self._decided is not None:
            return self._decided
        contenders = self._contenders()
        return bool(contenders) and self._hold(contenders)

    def _contenders(self) -> dict[str, list[Trial]]:
        """Every task's contenders; empty if no task has more than one."""
        if self._finals is None:
            return {}
        contenders = self._finals.contenders(self._session.state.tasks)
        return contenders if any(len(trials) > 1 for trials in contenders.values()) else {}

    def _hold(self, contenders: dict[str, list[Trial]]) -> bool:
        assert self._finals is not None
        session = self._session
        contested = [len(trials) for trials in contenders.values() if len(trials) > 1]
        session.progress.say(
            f"{sum(contested)} schedules of {len(contested)} tasks take turns in the model"
        )
        # Finals take long, so all earlier measurements are handed over first.
        session.journal.hand_over()
        held: dict[str, Final] = {}
        note = ""
        try:
            held = self._finals.hold(contenders, session.measurer)
        except (WorkerLostError, RequestFailedError) as fault:
            note = f"no finals in the model: {str(fault).splitlines()[-1]}"
            session.progress.say(note)
        finals = {name: final._asdict() for name, final in held.items()}
        session.note({"kind": "in_model", "finals": finals, "note": note, **session.spent()})
        return bool(held)
