"""The rounds of sharing: contenders of all tasks take turns, and the fastest stay.

Every task begins with the schedule that was predicted, or tuned. In each round those tasks get a
few contenders from which the model is expected to gain most: the best schedules of their donors,
moved into their own design space; what the predictor rates best; children of the fastest. All are
built and checked while others are still chosen. What is measured corrects the predictor for all
tasks. The rounds end when nothing promises a visible gain, or the budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fewtune.artifacts import Skeleton
from fewtune.options import ShareOptions, TuneOptions
from fewtune.predictor.learnt import ranks_taught
from fewtune.process.ending import is_asked_to_end
from fewtune.runtime.kernel_store import KernelStore
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import Donation, UnfitError, donation_of, fit
from fewtune.search import Explorer, Proposal
from fewtune.search.warm_start import known_points, teach
from fewtune.sharing.judges import DEFAULT, Alone, Entry, InModel, Judged, near
from fewtune.sharing.promise import promises
from fewtune.task.extract import read_tasks
from fewtune.trial.outcome import Outcome, RequestFailedError, WorkerLostError
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.job import SessionJob, Workplace
from fewtune.tuning.run_state import IN_MODEL
from fewtune.tuning.session import Session, TuneJob
from fewtune.tuning.task_state import PriorResult, TaskState

# Contenders of a round: more would wait long for the first gain. A round itself takes a second, so
# its tasks together have to promise this part of the model's time.
_MOST_A_ROUND, _A_ROUND = 32, 0.006
# Schedules of a donor that are offered, and how much slower a tuned one may be than the fastest
# alone to take part.
_DONATED, _NEAR = 8, 1.2
# The part of its time that a search leaves to be saved, and the least part of the model's time that
# a task takes whose tuned schedules meet in the model.
_SEARCHED, _HEAVY = 0.05, 0.005
# From this part of its time on, which nobody knows how to save, a task tries its default schedule.
_DOUBTFUL = 0.3


@dataclass(frozen=True)
class Start:
    """What is known of a task before anything is measured.

    Attributes
    ----------
    trial : Trial or None
        The predicted schedule; None if it has its default one.
    spread : float
        The part of its time that another schedule may save.
    promising : list of Point
        The points that are rated best beside it.
    """

    trial: Trial | None
    spread: float
    promising: list[Point]


@dataclass(frozen=True)
class ShareJob(SessionJob):
    """The work of a sharing session. A fleet sends the folder ``model`` along.

    Attributes
    ----------
    takers : dict of list of str
        By task that was not tuned, the donors that it takes schedules from.
    starts : dict of Start
        By task.
    donations : dict of list of Donation
        By donor of a bank, best first.
    tuned : dict of PriorResult
        The tuned tasks: their best schedules take part.
    options : ShareOptions
    proposes : bool
        Whether schedules are tried that nobody measured; not in full tuning.
    model : Path, optional
        The tasks' folder, with the model's skeleton, to measure in the model.
    cold_weights : bool
        Whether the tasks were tuned with their weights in memory.
    twins : list of str
        Takers of other shapes of the model: in the end they take what their twins came to.
    """

    takers: dict[str, list[str]]
    starts: dict[str, Start]
    donations: dict[str, list[Donation]]
    tuned: dict[str, PriorResult]
    options: ShareOptions
    proposes: bool = True
    model: Path | None = None
    cold_weights: bool = False
    twins: list[str] = field(default_factory=list)

    def run(self, place: Workplace) -> None:
        """Share schedules."""
        judge, directory = None, self.model
        # A model that runs on this processor is needed, and kernels that can be linked.
        can_run = self.options.finals > 1 and place.device.can.finals_in_model
        if can_run and directory is not None and KernelStore.of(place.target) is not None:
            if (directory / Skeleton.file_name).is_file():
                tasks, skeleton = read_tasks(directory), Skeleton.read(directory)
                threads = place.device.fingerprint.threads

                def judge(session: Sharing) -> InModel:
                    return InModel(skeleton, tasks, session.measurer, threads)
            else:
                place.progress.say(f"not measured in the model: {directory} has no skeleton")
        Sharing(self, place, judge).run()


class Sharing(Session):
    """Gives tasks the schedules that are fastest for them.

    Parameters
    ----------
    job : ShareJob
    place : Workplace
    judge : callable, optional
        Gives the judge of the rounds; each task's contenders are measured alone unless given.
    """

    def __init__(
        self,
        job: ShareJob,
        place: Workplace,
        judge: Callable[[Sharing], InModel] | None = None,
    ) -> None:
        options = TuneOptions(
            trials_per_task=job.options.trials_per_task,
            batch_size=job.options.trials_per_task,
            budget_s=job.options.budget_s,
            predictor=job.options.predictor,
            seed=job.options.seed,
        )
        by_name = {task.info.name: task for task in place.tasks}
        named = [*job.takers, *job.tuned]
        super().__init__(
            TuneJob(named, options, cold_weights=job.cold_weights),
            replace(place, tasks=[by_name[name] for name in named]),
            earlier=job.tuned,
            starts={name: start.trial for name, start in job.starts.items()},
        )
        self.share_job = job
        self._alone = Alone(self.measurer, self.target)
        self._in_model = None if judge is None else judge(self)
        self._twins = frozenset(job.twins)

    @property
    def total_trials(self) -> int:
        """Trials so far: how many will be worth it is not known."""
        return self.state.trials

    def is_done(self) -> bool:
        """Whether the journal is of a session that ended under this budget."""
        budget_s = self.options.budget_s
        has_more = budget_s is None or self.elapsed_s < budget_s
        return self.state.stopped_by not in (None, "interrupted", *["budget"] * has_more)

    def conclude(self) -> None:
        """Serve the other shapes of the model."""
        if self._in_model is not None:
            self._in_model.close()
        twins = [s for name, s in self.state.tasks.items() if name in self._twins and not s.crashed]
        entries = [self._of_twin(state) for state in twins if not state.gains]
        contested = [each for each in entries if each.proposals]
        if contested:
            self._hold(contested, self._alone, "other shapes")

    def search(self) -> str:
        """Hold rounds; return why there are no more."""
        states = [s for name, s in self.state.tasks.items() if name not in self._twins]
        if not states:
            return "nothing_to_tune"
        with self.measurer.phases.timed("model_update_s"):
            self._teach()
        while True:
            if is_asked_to_end():
                return "interrupted"
            budget_s = self.options.budget_s
            if budget_s is not None and self.elapsed_s + self._longest_batch_s / 2 >= budget_s:
                return "budget"
            began_s = self.elapsed_s
            chosen = self._chosen([state for state in states if not state.crashed])
            if not any(len(each.keys) > 1 for each in chosen):
                return "converged"
            self._judge(chosen)
            self._longest_batch_s = max(self._longest_batch_s, self.elapsed_s - began_s)

    def _judge(self, chosen: list[Entry]) -> None:
        """Measure in the model, or alone where that cannot be done or fails."""
        if self._in_model is not None and not self.state.note:
            try:
                self._hold(chosen, self._in_model, IN_MODEL)
                return
            except (WorkerLostError, RequestFailedError) as fault:
                note = f"not measured in the model: {str(fault).splitlines()[-1]}"
                self.progress.say(note)
                self.note({"kind": "no_model", "note": note})
        contested = [each for each in chosen if len(each.keys) > 1]
        self._hold(contested, self._alone, "alone")

    def _chosen(self, states: list[TaskState]) -> list[Entry]:
        """What every task enters: those that promise most have contenders."""
        spreads = {name: start.spread for name, start in self.share_job.starts.items()}
        spreads |= {name: min(spreads.get(name, 0.0), _SEARCHED) for name in self.share_job.tuned}
        promised = promises(states, spreads)
        order = sorted(states, key=lambda s: (-promised[s.task.info.name], s.task.info.name))
        least = self.share_job.options.least_gain
        whole = sum(promise for promise in promised.values() if promise >= least)
        room, found = _MOST_A_ROUND if whole >= min(_A_ROUND, 3 * least) else 0, []
        for state in order:
            is_worth_it = promised[state.task.info.name] >= least and room > 0
            found.append(self._entered(state, is_worth_it))
            room -= len(found[-1].keys) - 1
        return found

    def _entered(self, state: TaskState, is_worth_it: bool) -> Entry:
        """The incumbent of a task, and its contenders if it is worth it."""
        self.announce(state)
        with self.measurer.phases.timed("search_s"):
            incumbent = state.incumbent
            keys = [incumbent.key if incumbent is not None else self._default_of(state)]
            proposals: list[Proposal] = []
            donors: list[str | None] = []
            if not state.gains and state.task.info.share >= _HEAVY:
                # Alone, schedules that are near each other may be in either order.
                keys += near(state.ranked(), _NEAR, self.share_job.options.finals)[1:]
            if is_worth_it:
                if self.share_job.proposes:
                    proposals, donors = self._proposed(state)
                    keys += [each.key for each in proposals]
                if self._spread(state) >= _DOUBTFUL and state.default is None:
                    keys.append(self._default_of(state))
            keys = list(dict.fromkeys(keys))
            if self._in_model is not None and not self.state.note:
                for key in keys:
                    self._in_model.offer(state, key)
        return Entry(state, keys, proposals, donors)

    def _spread(self, state: TaskState) -> float:
        start = self.share_job.starts.get(state.task.info.name)
        return 0.0 if start is None else start.spread

    def _default_of(self, state: TaskState) -> str:
        """The key of a task's default schedule; its outputs are what others are compared with."""
        if state.default is None:
            schedule = default_schedule(state.task.mod, self.target)
            if schedule is None:
                return DEFAULT
            state.default = Trial(trace_key(schedule.trace), None, None)
        return state.default.key

    def _proposed(self, state: TaskState) -> tuple[list[Proposal], list[str | None]]:
        """A task's next contenders, and the donor of each."""
        search = self.searches.of(state)
        start = self.share_job.starts.get(state.task.info.name, Start(None, 0.0, []))
        if start.trial is not None:
            search.rejected.update(known_points(search.space, [start.trial])[0])
        moved = self._moved(state, search)
        points = search.unknown([*moved, *start.promising])
        if search.guide is not None:
            points = search.guide.ordered(points, search.times_s)
        search.begin_from(points)
        proposals = search.next_batch(self.options.batch_size)
        known = [p for p in proposals if p.key not in state.known]
        return known, [moved.get(each.point) for each in known]

    def _moved(self, state: TaskState, search: Explorer) -> dict[Point, str]:
        """Schedules of a task's donors as points of its own space, with their donors."""
        found: dict[Point, str] = {}
        for donor in self.share_job.takers.get(state.task.info.name, []):
            for donation in self._donations(donor):
                try:
                    found.setdefault(fit(donation, search.space), donor)
                except UnfitError:
                    continue
        return found

    def _donations(self, donor: str, most: int = _DONATED) -> list[Donation]:
        """The best schedules of a donor: of a task of this model, or of a bank."""
        state = self.state.tasks.get(donor)
        if state is None:
            return self.share_job.donations.get(donor, [])
        best = [each for each in state.ranked() if each.key != state.default_key]
        return [donation_of(state.task.mod, each.trace) for each in best[:most]]

    def _of_twin(self, state: TaskState) -> Entry:
        """A task of another shape: what the largest shape's task like it has, and its start."""
        (twin,) = self.share_job.takers[state.task.info.name]
        largest, proposals = self.state.tasks[twin], list[Proposal]()
        has, had = largest.incumbent, largest.start
        # What was predicted for the largest shape is what this one begins with.
        if has is not None and (had is None or has.key != had.key):
            self.announce(state)
            search = self.searches.of(state)
            for donation in self._donations(twin, 1):
                with suppress(UnfitError):
                    search.begin_from([fit(donation, search.space)])
                    proposals = search.next_batch(1)
        keys = [] if state.start is None else [state.start.key]
        keys += [each.key for each in proposals]
        return Entry(state, list(dict.fromkeys(keys)), proposals, [twin] * len(proposals))

    def _hold(self, chosen: list[Entry], judge: Alone | InModel, name: str) -> None:
        """Measure a round, note it, and learn from it."""
        contested = [len(each.keys) for each in chosen if len(each.keys) > 1]
        self.progress.say(
            f"{sum(contested)} schedules of {len(contested)} tasks take turns ({name})"
        )
        # A round may take long, so all earlier measurements are handed over first.
        self.journal.hand_over()
        judged = judge.judged(chosen)
        spent = self.spent()
        self.note(
            {
                "kind": "round",
                "round": name,
                "finals": {each: final._asdict() for each, final in judged.finals.items()},
                "defaults": {
                    each.name: each.state.default_key
                    for each in chosen
                    if each.state.default is not None
                },
                "by_task": {
                    each.name: self._trials(each, judged) for each in chosen if each.proposals
                },
                "donors": {each.name: each.donors for each in chosen if each.proposals},
                "rest_s": judged.rest_s,
                **spent,
            }
        )
        for each in chosen:
            self._learn(each)
        self.show(chosen[0].state, phase="share")

    def _trials(self, chosen: Entry, judged: Judged) -> list[dict[str, Any]]:
        """The proposals of a task as trials."""
        state, found = chosen.state, []
        task, calls = state.task.info, state.progress.weight
        final = judged.finals.get(task.name)
        for proposal in chosen.proposals:
            if final is not None and proposal.key in final.keys:
                time_s = final.time_s(final.keys.index(proposal.key)) / calls
                is_checked = (task.name, proposal.key) not in judged.unchecked
                outcome = Outcome([time_s], is_checked=is_checked)
            else:
                outcome = judged.failures[task.name, proposal.key]
            found.append(Trial.measured(proposal.key, outcome).as_json())
        return found

    def _learn(self, chosen: Entry) -> None:
        """Let the search of a task, and by it the predictor, learn from a round."""
        state, proposals = chosen.state, chosen.proposals
        if not proposals or not self.share_job.proposes:
            return
        # Extracting features may crash: that is then the fault of this task.
        self.announce(state)
        with self.measurer.phases.timed("model_update_s"):
            search = self.searches.of(state)
            times_s = [state.known[each.key].outcome.median_s for each in proposals]
            search.learn(proposals, times_s)
            first_s = state.finals_s.get(chosen.keys[0])
            start = state.start
            if search.guide is not None and start is not None and first_s is not None:
                points = known_points(search.space, [start])[0]
                if start.key == chosen.keys[0] and points[0] not in search.times_s:
                    search.times_s[points[0]] = first_s
                    search.guide.learn_points(points, [first_s])

    def _teach(self) -> None:
        """Let cost model and predictor learn from the tuned tasks' trials."""
        if not self.share_job.proposes:
            return
        teach(self.searches.knowledge, self._taught())

    def _taught(self) -> Iterator[tuple[SearchSpace, list[Trial]]]:
        """The donors' trials, one donor at a time: a donor on which TVM crashes is left out."""
        for name, prior in self.share_job.tuned.items():
            state = self.state.tasks[name]
            if not state.crashed and not state.progress.finished:
                self.announce(state)
                ranks = ranks_taught(len(prior.trials))
                yield self.searches.space_of(state), [prior.trials[rank] for rank in ranks]
