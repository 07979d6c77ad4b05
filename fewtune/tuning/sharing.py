"""Sharing: a tuning session whose tasks begin from what other tasks have to give.

A task that is not tuned itself takes schedules in three rounds. First the best schedules of its
donors, moved into its own design space, and a few that are drawn by rule compete; the cost model,
taught by the donors' trials, rates them, and the likeliest few are measured beside the default
schedule. Where the result stays far behind what similar tasks reach, further donors are asked.
What is left of the budget then goes, in small batches, where the model's latency can fall most
(`fewtune.tuning.allocate`), each search going on from what was shared.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from fewtune.bank.bank import Bank
from fewtune.machine import target_from_json
from fewtune.schedule.default import default_schedule
from fewtune.schedule.prior import Prior
from fewtune.schedule.search_space import SearchSpace
from fewtune.schedule.transfer import Donation, move
from fewtune.task.extract import Task
from fewtune.tuning.allocate import TaskProgress, best_rates
from fewtune.tuning.journal import Journal
from fewtune.tuning.known import teach
from fewtune.tuning.log import Trial, trace_key
from fewtune.tuning.measure import Outcome, Phases, module_specs
from fewtune.tuning.options import ShareOptions, TuneOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress
from fewtune.tuning.session import Session, Timer
from fewtune.tuning.state import TaskState
from fewtune.tuning.strategies import Proposal
from fewtune.tvm_runtime import tvm

FIRST, SECOND = "first donors", "second donors"
# Below this part of the throughput of the best similar task, further donors are asked.
FAR = 0.85
# Candidates of several tasks are built together, so that no worker waits for the other.
_MODULES_A_BATCH = 16
# Small batches, so that what is left goes where the model gains most.
_REFINING_BATCH = 4


class Taker(NamedTuple):
    """A task that takes schedules: from whom first, and whom to ask if that serves badly."""

    first: list[str]
    second: list[str]


class _Offer(NamedTuple):
    """A schedule that a task could take; one drawn by rule has no donor."""

    proposal: Proposal
    donor: str | None
    rank: int | None


class _Opening(NamedTuple):
    """What is measured of one task next."""

    state: TaskState
    default: tvm.s_tir.Schedule | None
    offers: list[_Offer]
    offered: int
    reasons: dict[str, int]


class Sharing(Session):
    """Gives tasks schedules of their donors, then refines where it pays.

    Parameters
    ----------
    takers : dict of Taker
        By task.
    donations : dict of list of Donation
        By donor, best first.
    peers : list of TaskProgress
        The tasks that were tuned: what they reach is what similar tasks are held to.
    sharing : ShareOptions
    settings
        As of `Session`.
    """

    def __init__(
        self,
        tasks: list[Task],
        takers: dict[str, Taker],
        donations: dict[str, list[Donation]],
        peers: list[TaskProgress],
        sharing: ShareOptions,
        target: tvm.target.Target,
        threads: int,
        journal: Journal,
        progress: Progress,
        pool: WorkerPool,
        cold_weights: bool = False,
    ) -> None:
        options = TuneOptions(
            trials_per_task=max(1, sharing.refine_trials),
            batch_size=_REFINING_BATCH,
            least_gain=sharing.least_gain,
            seed=sharing.seed,
        )
        super().__init__(
            tasks,
            list(takers),
            target,
            threads,
            options,
            journal,
            progress,
            pool,
            cold_weights=cold_weights,
        )
        self.takers = takers
        self.donations = donations
        self.peers = peers
        self.sharing = sharing
        self._rounds: dict[str, set[str]] = {FIRST: set(), SECOND: set()}
        self._shared_trials = 0
        for event in journal.events:
            if event.get("round"):
                self._rounds[event["round"]].add(event["task"])
                self._shared_trials += len(event["trials"])

    @property
    def total_trials(self) -> int:
        """Trials the budget allows: those of sharing itself, and the refinement's."""
        return self._shared_trials + self.sharing.refine_trials * len(self.state.tuned)

    def begin(self) -> None:
        """Measure what donors give, and ask others where that serves badly."""
        waiting = [
            self.state.tasks[name]
            for name in self.takers
            if name not in self._rounds[FIRST] and not self.state.tasks[name].crashed
        ]
        self._open(FIRST, waiting)
        self._open(SECOND, [state for state in self._behind() if self._asks_more(state)])

    def conclude(self) -> None:
        """No finals: they would take longer than the sharing did."""

    def _behind(self) -> list[TaskState]:
        """Tasks far from what similar ones reach."""
        progress = [state.progress for state in self.state.tasks.values()]
        rates = best_rates([*progress, *self.peers])
        return [
            state
            for state in self.state.tasks.values()
            if state.progress.flops / state.progress.current_s
            < FAR * rates.get(state.progress.family, 0.0)
        ]

    def _asks_more(self, state: TaskState) -> bool:
        name = state.task.info.name
        is_open = name not in self._rounds[SECOND] and not state.crashed
        return is_open and bool(self.takers[name].second)

    def _open(self, name: str, waiting: list[TaskState]) -> None:
        """One round of sharing; candidates of several tasks are measured together."""
        batch: list[_Opening] = []
        for place, state in enumerate(waiting):
            self.announce(state)
            taker = self.takers[state.task.info.name]
            with Timer(self.measurer.phases, "search_s"):
                batch.append(self._opening(state, taker.first if name == FIRST else taker.second))
            modules = sum(len(opening.offers) + 1 for opening in batch)
            if modules >= _MODULES_A_BATCH or place == len(waiting) - 1:
                self._measure_openings(name, batch)
                batch = []

    def _opening(self, state: TaskState, donors: list[str]) -> _Opening:
        space, search = self.space_of(state), self.search_of(state)
        given = [
            (donor, rank, donation)
            for donor in donors
            for rank, donation in enumerate(self.donations.get(donor, []), start=1)
        ]
        reasons: Counter[str] = Counter()
        offers: dict[int, _Offer] = {}
        made = move([donation for *_, donation in given], space)
        for (donor, rank, _), one in zip(given, made, strict=True):
            if one.schedule is None:
                reasons[one.reason] += 1
            elif one.point not in search.times_s:
                digest = tvm_ffi.structural_hash(one.schedule.mod)
                offers.setdefault(digest, _Offer(Proposal(one.schedule, one.point), donor, rank))
        is_first = state.default is None
        if is_first and (search.scorer.trained or not offers):
            for proposal in self._drawn(space, state.task.info.name):
                digest = tvm_ffi.structural_hash(proposal.schedule.mod)
                offers.setdefault(digest, _Offer(proposal, None, None))
        default = default_schedule(state.task.mod, self.target) if is_first else None
        likeliest = self._likeliest(state, list(offers.values()))
        return _Opening(state, default, likeliest, len(given), dict(sorted(reasons.items())))

    def _drawn(self, space: SearchSpace, name: str) -> list[Proposal]:
        """Schedules whose register tiles fit a task by rule, where there is a rule for it."""
        prior = Prior(space)
        random = np.random.default_rng([self.sharing.seed, *name.encode()])
        if not prior.informed:
            return []
        points = list(dict.fromkeys(prior.draw(random) for _ in range(self.sharing.draws)))
        made = space.make_all(points, range(1, len(points) + 1))
        return [Proposal(one.schedule, one.point) for one in made if one.schedule is not None]

    def _likeliest(self, state: TaskState, offers: list[_Offer]) -> list[_Offer]:
        """The first offer, and beside it those that the cost model rates best here."""
        count, search = self.sharing.trials_per_task, self.search_of(state)
        proposals, scores = search.scored([offer.proposal for offer in offers])
        offers = [o._replace(proposal=p) for o, p in zip(offers, proposals, strict=True)]
        if len(offers) <= count or not search.scorer.trained:
            return offers[:count]
        others = sorted(range(1, len(offers)), key=lambda place: -scores[place])
        return [offers[place] for place in [0, *others[: count - 1]]]

    def _measure_openings(self, name: str, batch: list[_Opening]) -> None:
        modules, specs, bars = [], [], []
        for opening in batch:
            schedules = [opening.default] if opening.default is not None else []
            schedules += [offer.proposal.schedule for offer in opening.offers]
            modules += [schedule.mod for schedule in schedules]
            specs += [module_specs(opening.state.task.mod)] * len(schedules)
            best_s = opening.state.progress.current_s
            bars += [best_s if best_s != float("inf") else None] * len(schedules)
        outcomes = iter(self.measurer.measure(modules, specs, bars))
        spent = self.spent()
        for opening in batch:
            task = opening.state.task.info.name
            if opening.default is not None:
                self.note_default(opening.state, _trial(opening.default, next(outcomes)))
            elif opening.state.default is None:
                nothing = Trial(trace_key(None), None, "no_default_schedule")
                self.note_default(opening.state, nothing)
            measured = [next(outcomes) for _ in opening.offers]
            trials = [
                _trial(offer.proposal.schedule, outcome)
                for offer, outcome in zip(opening.offers, measured, strict=True)
            ]
            self._rounds[name].add(task)
            self._shared_trials += len(trials)
            self.note(
                {
                    "kind": "batch",
                    "task": task,
                    "round": name,
                    "donors": [offer.donor for offer in opening.offers],
                    "ranks": [offer.rank for offer in opening.offers],
                    "offered": opening.offered,
                    "reasons": opening.reasons,
                    **spent,
                    "trials": [trial.as_json() for trial in trials],
                }
            )
            # What the batch took is noted once.
            spent = {"phases": Phases().as_json()}
            search = self.search_of(opening.state)
            search.learn(
                [offer.proposal for offer in opening.offers],
                [outcome.median_s for outcome in measured],
            )
            self.show(opening.state, phase="share" if name == FIRST else "share again")


def _trial(schedule: tvm.s_tir.Schedule, outcome: Outcome) -> Trial:
    return Trial(trace_key(schedule.trace), outcome.run_s, outcome.cause)


def share_session(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    threads: int,
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
) -> None:
    """Child process: share what the job's donors have to give; see `fewtune.share`."""
    by_name = {task.info.name: task for task in tasks}
    takers = {name: Taker(*pair) for name, pair in job["takers"].items()}
    sharing = Sharing(
        [by_name[name] for name in takers],
        takers,
        {name: [Donation.from_json(d) for d in each] for name, each in job["donations"].items()},
        [TaskProgress(**peer) for peer in job["peers"]],
        ShareOptions.model_validate(job["options"]),
        target_from_json(target_json),
        threads,
        journal,
        progress,
        pool,
        cold_weights=job["cold_weights"],
    )
    with Timer(sharing.measurer.phases, "model_update_s"):
        taught = [
            (SearchSpace(by_name[n].mod, sharing.target), [Trial.from_json(e) for e in entries])
            for n, entries in job["taught"].items()
        ]
        teach(sharing.cost_model, taught)
        if job["bank"] is not None:
            Bank.read(Path(job["bank"])).teach(sharing.cost_model)
    sharing.run()
