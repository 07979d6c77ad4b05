"""The job of a sharing session, as it is sent to the process that runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fewtune.options import ShareOptions
from fewtune.schedule.space.design_space import Point, point_from_json
from fewtune.schedule.space.transfer import Donation
from fewtune.trial.trial import Trial
from fewtune.tuning.task_state import PriorResult


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

    def as_json(self) -> dict[str, Any]:
        return {
            "trial": None if self.trial is None else self.trial.as_json(),
            "spread": self.spread,
            "promising": [(point.program, point.decisions) for point in self.promising],
        }

    @staticmethod
    def from_json(given: dict[str, Any]) -> Start:
        trial = None if given["trial"] is None else Trial.from_json(given["trial"])
        return Start(trial, given["spread"], [point_from_json(p) for p in given["promising"]])


@dataclass(frozen=True)
class ShareJob:
    """The work of a sharing session.

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
    bank : Path, optional
        Folder of a bank: the cost model learns from it.
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
    bank: Path | None = None
    model: Path | None = None
    cold_weights: bool = False
    twins: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values. A fleet sends the folders named ``bank`` and ``model`` along."""
        return {
            **vars(self),
            "starts": {name: start.as_json() for name, start in self.starts.items()},
            "donations": {
                name: [donation.as_json() for donation in each]
                for name, each in self.donations.items()
            },
            "tuned": {name: found.as_json() for name, found in self.tuned.items()},
            "options": self.options.model_dump(mode="json"),
            "bank": None if self.bank is None else str(self.bank),
            "model": None if self.model is None else str(self.model),
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Self:
        """The job that `as_json` wrote."""
        return cls(
            **{
                **given,
                "starts": {n: Start.from_json(each) for n, each in given["starts"].items()},
                "donations": {
                    name: [Donation.from_json(entry) for entry in each]
                    for name, each in given["donations"].items()
                },
                "tuned": {n: PriorResult.from_json(each) for n, each in given["tuned"].items()},
                "options": ShareOptions.model_validate(given["options"]),
                "bank": None if given["bank"] is None else Path(given["bank"]),
                "model": None if given["model"] is None else Path(given["model"]),
            }
        )
