"""Sharing: a tuning session whose tasks begin from what other tasks have to give.

A task that a bank holds already takes its schedule from there, and nothing of it is measured. Every
other task that is not tuned itself takes schedules in three rounds. First the best schedules of its
donors, moved into its own design space, and a few that are drawn by rule compete; they are
rated by the predictor, or by a cost model that was taught by the donors' trials, and the likeliest
few are measured. What comes near to the
throughput of the best similar task needs no further proof; of all others the default schedule is
measured too, and kept where nothing beats it. Then those that are still behind, by enough to
matter, ask on: first the tasks of their kind that did better in this very round, then, where they
are far behind, the next most similar representatives.
What is left of the budget then goes, in small batches, where the model's latency can fall most
(`fewtune.tuning.task_scheduler`), each search going on from what was shared, those of the
representatives from what they were tuned to; what one task finds there, those of its kind that do
worse try too. Last, the fastest few of each task meet in the model itself
(`fewtune.finals.finals`), after the fastest was measured cut as its neighbours are, where it is
not (`fewtune.finals.repartition`); or, where that cannot be, they are measured again, in turns
(`fewtune.tuning.remeasure`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from fewtune.finals.finals import Finals
from fewtune.finals.model_timing import InModel
from fewtune.finals.repartition import to_be_reparted
from fewtune.options import ShareOptions, TuneOptions
from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.parallel_axis import usual_axes
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import Donation, move
from fewtune.search import Explorer, Knowledge
from fewtune.sharing.candidates import Offers, offers_for, reparted_offers
from fewtune.sharing.donors import behind, siblings, whom_to_ask
from fewtune.sharing.rounds import BEFORE_FINALS, FIRST, SECOND, Rounds
from fewtune.storage.database import read_trace
from fewtune.storage.journal import Journal
from fewtune.task.extract import Task
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.finalists import MOST_IN_DUEL, contenders_of
from fewtune.tuning.progress import Progress
from fewtune.tuning.session import Session
from fewtune.tuning.task_state import PriorResult, TaskState
from fewtune.workers.pool import WorkerPool

KNOWN = "known"
# Schedules that each of these gives.
_FROM_EACH = 2
# Below this part of the throughput of the best similar task, the default schedule may be better.
DOUBTFUL = 0.9
# From this many times a task's throughput on, it tries what a task of its kind found.
BETTER = 1.05
# Few candidates of a task at a time, so that what is left goes where the model gains most; several
# tasks together, so that they are built as fast as in a large batch.
_REFINING_BATCH, _TASKS_A_BATCH = 4, 4


class Taker(NamedTuple):
    """A task that takes schedules: from whom first, and whom to ask if that serves badly."""

    first: list[str]
    second: list[str]


class BankedSchedule(NamedTuple):
    """A schedule of a task itself: the donor that has it, and the time that it had there."""

    donor: str
    latency_ms: float


class Sharing(Session):
    """Gives tasks schedules of their donors, then refines where it pays.

    Parameters
    ----------
    takers : dict of Taker
        By task.
    donations : dict of list of Donation
        By donor, best first.
    known : dict of BankedSchedule
        By task: what needs no measuring.
    teach : callable
        Lets what rates candidates learn from what was measured before, if anything is to be
        measured now; given the search space of a task by its name, or None where it is to learn
        nothing of it.
    tuned : dict of PriorResult
        The tasks that were tuned: what they reach is what similar tasks are held to, and they take
        part in the refinement.
    sharing : ShareOptions
    finals : Finals, optional
        What chooses among the best schedules of each task in the end.
    settings
        As of `Session`.
    """

    phase, tasks_a_batch = "refine", _TASKS_A_BATCH

    def __init__(
        self,
        tasks: list[Task],
        takers: dict[str, Taker],
        donations: dict[str, list[Donation]],
        known: dict[str, BankedSchedule],
        teach: Callable[[Knowledge, Callable[[str], SearchSpace | None]], None],
        tuned: dict[str, PriorResult],
        sharing: ShareOptions,
        target: tvm.target.Target,
        journal: Journal,
        progress: Progress,
        pool: WorkerPool,
        cold_weights: bool = False,
        covered: float = 1.0,
        finals: Finals | None = None,
    ) -> None:
        options = TuneOptions(
            trials_per_task=max(1, sharing.refine_trials),
            batch_size=_REFINING_BATCH,
            least_gain=sharing.least_gain,
            predictor=sharing.predictor,
            seed=sharing.seed,
        )
        super().__init__(
            tasks,
            [*takers, *tuned],
            target,
            options,
            journal,
            progress,
            pool,
            cold_weights=cold_weights,
            covered=covered,
            earlier=tuned,
        )
        self.takers = takers
        self.donations = donations
        self._known = known
        self._teach = teach
        self.sharing = sharing
        self._in_model = InModel(finals, self)
        self._rounds = Rounds(self)
        self._asked: dict[str, list[str]] | None = None
        self._made: dict[tuple[str, str], Donation] = {}
        for event in journal.events:
            if event["kind"] == "ask":
                self._asked = event["donors"]

    @property
    def total_trials(self) -> int:
        """Trials the budget allows: those of sharing itself, and the refinement's."""
        searched = sum(state.taken is None for state in self._takers())
        return self._rounds.trials + self.sharing.refine_trials * searched

    def begin(self) -> None:
        """Measure what donors give, and defaults and other donors where that serves badly."""
        self._take_known()
        rest = [state.task.info.name for state in self._takers() if state.taken is None]
        if rest:
            with self.measurer.phases.timed("model_update_s"):
                self._teach(self.searches.knowledge, self._space_to_learn_of)
        self._open(FIRST, {name: self.takers[name].first for name in rest})
        if self._asked is None:
            self.measure_defaults(behind(self.without_default(), self.rates(), DOUBTFUL))
            # Noted, since the refinement moves what tasks are behind of.
            second = {name: taker.second for name, taker in self.takers.items()}
            is_worth_it = self.patience.is_worth_it
            self._asked = whom_to_ask(self._takers(), second, self.rates(), is_worth_it)
            self.note({"kind": "ask", "donors": self._asked})
        self._open(SECOND, self._asked)
        if self.sharing.refine_trials:
            self._in_model.weigh()

    def _space_to_learn_of(self, name: str) -> SearchSpace | None:
        """A donor's search space; None of one that TVM crashed over."""
        state = self.state.tasks[name]
        if state.crashed or state.progress.finished:
            return None
        self.announce(state)
        return self.searches.space_of(state)

    def prompt(self, state: TaskState, search: Explorer) -> None:
        """Have the schedule of the likest task that does better by now measured beside the rest."""
        donors = siblings(state, self.state.tasks.values(), BETTER * state.progress.throughput)
        # One after the other: a schedule that nobody measures need not be made.
        untried = (
            one.point
            for donor in donors
            for one in move(self._given(donor)[:1], search.space)
            if one.schedule is not None and one.point not in search.times_s
        )
        search.begin_from(list(islice(untried, 1)))

    def conclude(self) -> None:
        """Finals in the model, or, where none are held, duels of each task's fastest."""
        if self._in_model.is_to_decide:
            self._part_as_neighbours_do()
        if not self._in_model.decides():
            self.hold_duels(list(self.state.tasks.values()))

    def finalists(self, state: TaskState) -> list[Trial]:
        """Who is measured again, of a task that takes enough of the model's time to matter.

        Of a representative, what came of the refinement, beside the best of before: hours differ.
        """
        if state.taken is not None or not state.ranked():
            return []
        part = state.progress.weight * state.progress.current_s / self.state.known_latency_s
        finalists = contenders_of(state.ranked(), part, MOST_IN_DUEL)
        if not state.earlier:
            return finalists
        keys = {one.key for one in finalists}
        if state.best_earlier.key not in keys:
            return [*finalists, state.best_earlier]
        return finalists if any(trial.key in keys for trial in state.trials) else []

    def _open(self, name: str, donors: dict[str, list[str]]) -> None:
        """One round of sharing, given each task's donors."""

        def offers_of(state: TaskState) -> Offers:
            return offers_for(
                self.searches.of(state),
                [(donor, self._given(donor)) for donor in donors[state.task.info.name]],
                self.sharing,
                state.task.info,
                draws=name == FIRST,
                for_finals=name == FIRST and self._in_model.can_be_asked,
            )

        self._rounds.open(name, list(donors), offers_of)

    def _part_as_neighbours_do(self) -> None:
        """Measure the fastest schedules cut as their neighbours are, where they are not."""
        searched = {
            name: state
            for name, state in self.state.tasks.items()
            if state.ranked() and not (state.crashed or state.taken)
        }
        ranked = {name: state.ranked() for name, state in searched.items()}
        times_s = {name: state.progress.share_s for name, state in searched.items()}
        axes = to_be_reparted(ranked, times_s, usual_axes(s.task.info for s in searched.values()))
        self._rounds.open(
            BEFORE_FINALS,
            list(axes),
            lambda state: reparted_offers(self.searches.of(state), axes[state.task.info.name]),
        )

    def _takers(self) -> list[TaskState]:
        return [self.state.tasks[name] for name in self.takers]

    def _given(self, donor: str) -> list[Donation]:
        """What a donor has to give: a representative, or a task of this session."""
        state = self.state.tasks.get(donor)
        if state is None or (state.earlier and not state.trials):
            return self.donations.get(donor, [])
        trials = [trial for trial in state.ranked() if trial.key in state.known][:_FROM_EACH]
        return [self._donation(state, trial) for trial in trials]

    def _donation(self, state: TaskState, trial: Trial) -> Donation:
        """A trial as it is given; every task of its kind may ask for it, batch after batch."""
        key = (state.task.info.name, trial.key)
        if key not in self._made:
            self._made[key] = Donation.of(read_trace(state.task.mod, trial, self.target))
        return self._made[key]

    def _take_known(self) -> None:
        """Take the schedules that donors have of the tasks themselves, with their times there."""
        taken = 0
        for name, known in self._known.items():
            state = self.state.tasks[name]
            if state.taken is not None or state.crashed or self._rounds.has_had(FIRST, name):
                continue
            self.announce(state)
            with self.measurer.phases.timed("search_s"):
                (made,) = move(self.donations[known.donor][:1], self.searches.space_of(state))
            if made.schedule is None:
                # Against all expectation: it is searched like any other task.
                continue
            trial = Trial(trace_key(made.schedule.trace), [known.latency_ms / 1e3], None)
            self.note({"kind": "known", "task": name, "trial": trial.as_json()})
            taken += 1
        if taken:
            self.note({"kind": "phases", "round": KNOWN, **self.spent()})
            self.progress.say(f"{taken} of {len(self.takers)} tasks are known from the bank")
