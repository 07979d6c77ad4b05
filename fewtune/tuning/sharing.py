"""Sharing: a tuning session whose tasks begin from what other tasks have to give.

A task that is not tuned itself takes schedules in three rounds. First the best schedules of its
donors, moved into its own design space, and a few that are drawn by rule compete; the cost model,
taught by the donors' trials, rates them, and the likeliest few are measured beside the default
schedule. Where the result stays far behind what similar tasks reach, further donors are asked.
What is left of the budget then goes, in small batches, where the model's latency can fall most
(`fewtune.tuning.allocate`), each search going on from what was shared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fewtune.bank.bank import Bank
from fewtune.machine import target_from_json
from fewtune.schedule.default import default_schedule
from fewtune.schedule.search_space import SearchSpace
from fewtune.schedule.transfer import Donation
from fewtune.task.extract import Task
from fewtune.tuning.allocate import TaskProgress, best_rates
from fewtune.tuning.journal import Journal
from fewtune.tuning.known import teach
from fewtune.tuning.log import Trial
from fewtune.tuning.measure import Outcome, Phases, module_specs
from fewtune.tuning.offers import Offers, offers_for
from fewtune.tuning.options import ShareOptions, TuneOptions
from fewtune.tuning.pool import WorkerPool
from fewtune.tuning.progress import Progress
from fewtune.tuning.session import Session, Timer
from fewtune.tuning.state import TaskState
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


class _Opening(NamedTuple):
    """What is measured of one task next."""

    state: TaskState
    default: tvm.s_tir.Schedule | None
    offers: Offers


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

    phase = "refine"

    def __init__(
        self,
        tasks: list[Task],
        takers: dict[str, Taker],
        donations: dict[str, list[Donation]],
        peers: list[TaskProgress],
        sharing: ShareOptions,
        target: tvm.target.Target,
        journal: Journal,
        progress: Progress,
        pool: WorkerPool,
        cold_weights: bool = False,
        covered: float = 1.0,
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
            options,
            journal,
            progress,
            pool,
            cold_weights=cold_weights,
            covered=covered,
        )
        self.takers = takers
        self.donations = donations
        self.peers = peers
        self.sharing = sharing
        self._rounds: dict[str, set[str]] = {FIRST: set(), SECOND: set()}
        self._shared_trials = 0
        self._asked: list[str] | None = None
        for event in journal.events:
            if event.get("round"):
                self._rounds[event["round"]].add(event["task"])
                self._shared_trials += len(event["trials"])
            if event["kind"] == "asked":
                self._asked = event["tasks"]

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
        if self._asked is None:
            # Noted, since the refinement moves what tasks are behind of.
            self._asked = [
                state.task.info.name
                for state in self._behind()
                if self.takers[state.task.info.name].second
            ]
            self.note({"kind": "asked", "tasks": self._asked})
        asked = [
            self.state.tasks[name]
            for name in self._asked
            if name not in self._rounds[SECOND] and not self.state.tasks[name].crashed
        ]
        self._open(SECOND, asked)

    def conclude(self) -> None:
        """No finals: they would take longer than the sharing did."""

    def _behind(self) -> list[TaskState]:
        """Tasks far from what similar ones reach."""
        progress = [state.progress for state in self.state.tasks.values()]
        rates = best_rates([*progress, *self.peers], self.measurer.most_flops_s)
        return [
            state
            for state in self.state.tasks.values()
            if state.progress.flops / state.progress.current_s
            < FAR * rates.get(state.progress.family, 0.0)
        ]

    def _open(self, name: str, waiting: list[TaskState]) -> None:
        """One round of sharing; candidates of several tasks are measured together."""
        batch: list[_Opening] = []
        for place, state in enumerate(waiting):
            self.announce(state)
            with Timer(self.measurer.phases, "search_s"):
                batch.append(self._opening(name, state))
            modules = sum(len(opening.offers.likeliest) + 1 for opening in batch)
            if modules >= _MODULES_A_BATCH or place == len(waiting) - 1:
                self._measure(name, batch)
                batch = []

    def _opening(self, name: str, state: TaskState) -> _Opening:
        taker = self.takers[state.task.info.name]
        donors = taker.first if name == FIRST else taker.second
        offers = offers_for(
            self.search_of(state),
            [(donor, self.donations.get(donor, [])) for donor in donors],
            self.sharing,
            state.task.info.name,
            draws=name == FIRST,
        )
        is_known = state.default is not None
        default = None if is_known else default_schedule(state.task.mod, self.target)
        return _Opening(state, default, offers)

    def _measure(self, name: str, batch: list[_Opening]) -> None:
        """Measure a batch and note it; then learn from it, each task for itself."""
        modules, specs, bars, races = [], [], [], []
        for opening in batch:
            task, specification = opening.state.task, module_specs(opening.state.task.mod)
            if opening.default is not None:
                modules.append(opening.default.mod)
                specs.append(specification)
                bars.append(None)
                # Every default is measured in full: candidates have to beat its figure.
                races.append((task.info.name, "default"))
            best_s = opening.state.progress.current_s
            for offer in opening.offers.likeliest:
                modules.append(offer.proposal.schedule.mod)
                specs.append(specification)
                bars.append(best_s if best_s != float("inf") else None)
                races.append((task.info.name, "offers"))
        outcomes = iter(self.measurer.measure(modules, specs, bars, races))
        spent = self.spent()
        learned = []
        for opening in batch:
            if opening.default is not None:
                self.note_default(opening.state, Trial.of(opening.default, next(outcomes)))
            elif opening.state.default is None:
                self.note_default(opening.state, None)
            measured = [next(outcomes) for _ in opening.offers.likeliest]
            learned.append([outcome.median_s for outcome in measured])
            self._note_round(name, opening, measured, spent)
            # What the batch took is noted once.
            spent = {"phases": Phases().as_json()}
        for opening, times_s in zip(batch, learned, strict=True):
            # A crash while features are extracted is to be laid to the right task.
            self.announce(opening.state)
            proposals = [offer.proposal for offer in opening.offers.likeliest]
            with Timer(self.measurer.phases, "model_update_s"):
                self.search_of(opening.state).learn(proposals, times_s)
            self.show(opening.state, phase="share" if name == FIRST else "share again")

    def _note_round(
        self, name: str, opening: _Opening, measured: list[Outcome], spent: dict[str, Any]
    ) -> None:
        likeliest = opening.offers.likeliest
        trials = [
            Trial.of(offer.proposal.schedule, outcome)
            for offer, outcome in zip(likeliest, measured, strict=True)
        ]
        task = opening.state.task.info.name
        self._rounds[name].add(task)
        self._shared_trials += len(trials)
        self.note(
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


def share_session(
    job: dict[str, Any],
    tasks: list[Task],
    target_json: str,
    journal: Journal,
    progress: Progress,
    pool: WorkerPool,
) -> None:
    """Child process: share what the job's donors have to give; see `fewtune.share`."""
    by_name = {task.info.name: task for task in tasks}
    takers = {name: Taker(*pair) for name, pair in job["takers"].items()}
    peers = []
    for name, reached_ms in job["reached_ms"].items():
        peer = TaskProgress.of(by_name[name].info)
        peer.best_s = [] if reached_ms is None else [reached_ms / 1e3]
        peers.append(peer)
    sharing = Sharing(
        [by_name[name] for name in takers],
        takers,
        {name: [Donation.from_json(d) for d in each] for name, each in job["donations"].items()},
        peers,
        ShareOptions.model_validate(job["options"]),
        target_from_json(target_json),
        journal,
        progress,
        pool,
        cold_weights=job["cold_weights"],
        covered=job["covered"],
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
