"""The loop: tasks get contenders, which take turns with what they have; the fastest stays.

Every round is in the journal before the next begins. A session that is opened on a journal takes
over its trials: they are not built again, predictor and cost models learn from them, and each
search starts from the best of them. How tuning and sharing differ is which tasks get contenders
(`Session.entries`), and where these are measured (`Session.judge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fewtune.artifacts import StoppedBy
from fewtune.machine.host import stolen_s
from fewtune.measure.device import device_of
from fewtune.predictor import AUTO, learnt
from fewtune.predictor.predictor import predictor_for
from fewtune.process.ending import is_asked_to_end, listen
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import UnfitError, donation_of, fit
from fewtune.search import Explorer, Knowledge, Proposal, make_cost_model, make_strategy
from fewtune.search.warm_start import known_points
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.job import BUDGET, SessionJob, Workplace
from fewtune.tuning.judges import DEFAULT, Entry, InModel, alone
from fewtune.tuning.state import ALONE, IN_MODEL, RunState, TaskState

# Schedules of a donor that are offered.
_DONATED = 8


class Session:
    """Gives tasks contenders, round by round.

    Parameters
    ----------
    job : SessionJob
    place : Workplace
    clock : callable
        Monotonic seconds; tests give a fake one.
    """

    # Shown in the progress.
    phase = "tune"

    def __init__(
        self, job: SessionJob, place: Workplace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.options, self.device = job.options, device_of(job.fingerprint)
        self.total_trials = job.total_trials
        self.journal, self.progress = place.journal, place.progress
        self.state = RunState(job.unpacked(), job.starts, place.journal.events)
        self.target = self.device.target
        predictor = predictor_for(job.options.predictor, self.target)
        # Trials of an earlier session of this run are taught by the caller.
        if job.options.predictor == AUTO and not any(each.trials for each in job.starts.values()):
            own = (info.workload for info, _ in job.tasks)
            learnt.teach(predictor, job.fingerprint, own)
        cost_model = make_cost_model(job.options.cost_model)
        self.knowledge = Knowledge(cost_model, predictor, job.cold_weights)
        self.measurer = self.device.measurer(place.pool, cold_weights=job.cold_weights)
        self._searches: dict[str, Explorer] = {}
        self._clock = clock
        self._began_s = clock() - self.state.elapsed_s
        self._unstolen_s = stolen_s() - self.state.stolen_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return self._clock() - self._began_s

    def entries(self) -> list[Entry]:
        """The next round: what every task of it enters."""
        raise NotImplementedError

    def judge(self, entries: list[Entry]) -> None:
        """Measure the next round."""
        self.hold(entries)

    def conclude(self) -> None:
        """Do what follows the rounds."""

    def run(self) -> StoppedBy:
        """Hold rounds until the budget is spent or nothing is gained; return the reason.

        One that had ended goes on if it was interrupted, or has another budget now.
        """
        if self.state.trials:
            self.progress.say(f"resuming: {self.state.trials} trials are in {self.journal.path}")
        budget = self.options.model_dump(include=BUDGET)
        if self.state.stopped_by != "interrupted" and self.state.budget == budget:
            return self.state.stopped_by
        listen()
        stopped_by = self.rounds()
        self.conclude()
        # A guide takes a while to make.
        known = [each for each in self._searches.values() if len(each.times_s) >= learnt.FEWEST]
        sampled = [each.guide.sampled(each.times_s) for each in known if each.guide is not None]
        learnt.keep(sampled, self.device.fingerprint)
        self.note({"kind": "finish", "stopped_by": stopped_by, "budget": budget, **self.spent()})
        return stopped_by

    def rounds(self) -> StoppedBy:
        """Hold rounds; return why there are no more."""
        longest_s, budget_s = 0.0, self.options.budget_s
        while True:
            began_s = self.elapsed_s
            if is_asked_to_end():
                return "interrupted"
            if self.total_trials is not None and self.state.trials >= self.total_trials:
                return "trials"
            if budget_s is not None and began_s + longest_s / 2 >= budget_s:
                return "budget"
            entries = self.entries()
            if not any(len(each.keys) > 1 for each in entries):
                return "converged"
            self.judge(entries)
            longest_s = max(longest_s, self.elapsed_s - began_s)

    def announce(self, state: TaskState) -> None:
        """Note the task that comes next: a crash is then known to be its fault."""
        self.journal.append({"kind": "start", "task": state.name})

    def note(self, event: dict[str, Any]) -> None:
        """Journal an event, then take it in exactly as a resumed run would."""
        kept_s = round(stolen_s() - self._unstolen_s, 3)
        event = {"elapsed_s": round(self.elapsed_s, 3), "stolen_s": kept_s, **event}
        self.journal.append(event)
        self.state.take(event)

    def spent(self) -> dict[str, Any]:
        """The cost of a round, for its event: seconds by phase."""
        phases, self.measurer.phases = self.measurer.phases, Phases()
        return {"phases": phases.as_json()}

    def search_of(self, state: TaskState) -> Explorer:
        """The task's search; after a resumption it knows the trials of the journal."""
        if state.name not in self._searches:
            space = SearchSpace(state.task.mod, self.target)
            # Another seed after a resumption; the same would draw the first batch again.
            seed = 1 + self.options.seed + 7919 * len(state.known)
            search = make_strategy(space, self.knowledge, self.options, seed)
            search.remember(*known_points(space, state.trials))
            if state.start.trial is not None:
                search.rejected.update(known_points(space, [state.start.trial])[0])
            state.promising = [*known_points(space, state.start.seeds)[0], *state.start.promising]
            self._searches[state.name] = search
        return self._searches[state.name]

    def entered(self, state: TaskState, count: int) -> Entry:
        """What a task has, and up to ``count`` contenders that were never measured."""
        self.announce(state)
        asked, donors = list[Proposal](), dict[str, str | None]()
        with self.measurer.phases.timed("search_s"):
            incumbent = state.incumbent
            first = self.default_of(state) if incumbent is None else incumbent.key
            if count:
                search = self.search_of(state)
                moved = self._moved(state, search)
                points = search.unknown([*moved, *state.promising])
                if search.guide is not None:
                    points = search.guide.ordered(points, search.times_s)
                search.begin_from(points)
                asked = search.next_batch(count)
                fresh = [each for each in asked if each.key not in state.known]
                donors = {each.key: moved.get(each.point) for each in fresh if each.key != first}
        return Entry(state, [first, *donors], asked, donors)

    def default_of(self, state: TaskState) -> str:
        """The key of a task's default schedule; its outputs are what others are compared with."""
        if state.default_key is None:
            schedule = default_schedule(state.task.mod, self.target)
            state.default_key = DEFAULT if schedule is None else trace_key(schedule.trace)
        return state.default_key

    def _moved(self, state: TaskState, search: Explorer) -> dict[Point, str]:
        """Schedules of a task's donors as points of its own space, with their donors."""
        found: dict[Point, str] = {}
        for name, given in state.start.donors.items():
            donations = given
            if (donor := self.state.tasks.get(name)) is not None:
                best = [each for each in donor.ranked() if each.key != donor.default_key]
                donations = [donation_of(donor.task.mod, each.trace) for each in best[:_DONATED]]
            for donation in donations:
                with suppress(UnfitError):
                    found.setdefault(fit(donation, search.space), name)
        return found

    def hold(self, entries: list[Entry], model: InModel | None = None) -> None:
        """Measure a round, in a model or alone; note it, and learn from it."""
        # A round may take long, so all earlier measurements are handed over first.
        self.journal.hand_over()
        judged = model.judged(entries) if model else alone(entries, self.measurer, self.target)
        proposed = [each for each in entries if each.donors]
        self.note(
            {
                "kind": "round",
                "round": IN_MODEL if model else ALONE,
                "finals": {each: final._asdict() for each, final in judged.finals.items()},
                "defaults": {each.name: each.state.default_key for each in entries},
                "by_task": {
                    each.name: [
                        Trial.measured(key, judged.outcomes[each.name, key]).as_json()
                        for key in each.donors
                    ]
                    for each in proposed
                },
                "donors": {each.name: [*each.donors.values()] for each in proposed},
                "rest_s": judged.rest_s,
                **self.spent(),
            }
        )
        for each in proposed:
            self._learn(each)
        self.show(entries[0].name)

    def _learn(self, entry: Entry) -> None:
        """Let the search of a task, and by it the predictor, learn from a round."""
        state, search = entry.state, self.search_of(entry.state)
        # Extracting features may crash: that is then the fault of this task.
        self.announce(state)
        with self.measurer.phases.timed("model_update_s"):
            times_s = [state.known[each.key].outcome.median_s for each in entry.asked]
            search.learn(entry.asked, times_s)
            start, first_s = state.start.trial, state.finals_s.get(entry.keys[0])
            if search.guide and start and first_s and start.key == entry.keys[0]:
                points = known_points(search.space, [start])[0]
                if points[0] not in search.times_s:
                    search.times_s[points[0]] = first_s
                    search.guide.learn_points(points, [first_s])

    def show(self, name: str) -> None:
        """Show the state of the run."""
        total = self.total_trials or self.state.trials
        self.progress.show(self.state.snapshot(name, self.phase, total, self.options.budget_s))
