"""The loop: tasks get contenders, which take turns with what they have; the fastest stays.

Every round is in the journal before the next begins. A session that is opened on a journal takes
over its trials: they are not built again, predictor and cost models learn from them, and each
search starts from the best of them. How tuning and sharing differ is which tasks get contenders
(`Session.entries`), and where these are measured (`Session.model`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from fewtune.artifacts import StoppedBy
from fewtune.machine.host import stolen_s
from fewtune.measure.device import device_of
from fewtune.predictor import AUTO, learnt
from fewtune.predictor.predictor import predictor_for
from fewtune.process.ending import is_asked_to_end, listen
from fewtune.progress.progress import Progress
from fewtune.schedule.defaults import default_schedule
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.search_space import SearchSpace
from fewtune.schedule.space.transfer import UnfitError, donation_of, fit
from fewtune.search import Explorer, Knowledge, Proposal, make_cost_model, make_strategy
from fewtune.search.warm_start import known_points
from fewtune.storage.journal import Journal
from fewtune.trial.outcome import RequestFailedError, WorkerLostError
from fewtune.trial.phases import Phases
from fewtune.trial.trial import Trial, trace_key
from fewtune.tuning.job import BUDGET, SessionJob
from fewtune.tuning.judges import DEFAULT, Entry, InModel, Judged, alone
from fewtune.tuning.state import ALONE, IN_MODEL, TaskState
from fewtune.workers.pool import WorkerPool

# Schedules of a donor that are offered.
_DONATED = 8


class Session:
    """Gives tasks contenders, round by round.

    Parameters
    ----------
    job : SessionJob
    journal : Journal
    progress : Progress
    pool : WorkerPool
    """

    # Monotonic seconds; tests give a fake one.
    clock = staticmethod(time.perf_counter)

    def __init__(
        self, job: SessionJob, journal: Journal, progress: Progress, pool: WorkerPool
    ) -> None:
        self.job, self.journal, self.progress = job, journal, progress
        self.options, self.device = job.options, device_of(job.fingerprint)
        self.state, self.target = job.state(journal.events), self.device.target
        predictor = predictor_for(job.options.predictor, self.target)
        # Trials of an earlier session of this run are taught by the caller.
        if job.options.predictor == AUTO and not any(each.trials for each in job.starts.values()):
            learnt.teach(predictor, job.fingerprint, (t.info.workload for t in job.tasks))
        cost_model = make_cost_model(job.options.cost_model)
        self.knowledge = Knowledge(cost_model, predictor, job.cold_weights)
        self.measurer = self.device.measurer(pool)
        # Where contenders are measured in the model.
        self.model: InModel | None = None
        self._searches: dict[str, Explorer] = {}
        self._began_s = self.clock() - self.state.elapsed_s
        self._unstolen_s = stolen_s() - self.state.stolen_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of tuning so far, those before an interruption included."""
        return self.clock() - self._began_s

    def entries(self) -> list[Entry]:
        """The next round: what every task of it enters."""
        raise NotImplementedError

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
        if self.model is not None:
            self.model.close()
        known = [each for each in self._searches.values() if each.times_s]
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
            if self.job.total_trials and self.state.trials >= self.job.total_trials:
                return "trials"
            if budget_s is not None and began_s + longest_s / 2 >= budget_s:
                return "budget"
            entries = self.entries()
            if not any(len(each.keys) > 1 for each in entries):
                return "converged"
            self.hold(entries)
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
            donor, donations = self.state.tasks.get(name), given
            if donor is not None:
                best = [each for each in donor.ranked() if each.key != donor.default_key]
                donations = [donation_of(donor.task.mod, each.trace) for each in best[:_DONATED]]
            for donation in donations:
                with suppress(UnfitError):
                    found.setdefault(fit(donation, search.space), name)
        return found

    def hold(self, entries: list[Entry]) -> None:
        """Measure a round; note it, and learn from it."""
        # A round may take long, so all earlier measurements are handed over first.
        self.journal.hand_over()
        name, judged = IN_MODEL, self._in_model(entries)
        if judged is None:
            entries = [each for each in entries if len(each.keys) > 1]
            name, judged = ALONE, alone(entries, self.measurer, self.target)
        proposed = [each for each in entries if each.donors]
        self.note(
            {
                "kind": "round",
                "round": name,
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
        self.progress.show(self.job.snapshot(self.state, entries[0].name))

    def _in_model(self, entries: list[Entry]) -> Judged | None:
        """What a round comes to in the model; None where it cannot be measured there."""
        try:
            return self.model.judged(entries) if self.model is not None else None
        except (WorkerLostError, RequestFailedError) as fault:
            # What was offered is built by now.
            self.model = None
            note = f"not measured in the model: {str(fault).splitlines()[-1]}"
            self.progress.say(note)
            self.note({"kind": "no_model", "note": note})
            return None

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
