"""The results of `benchmarks.check_power` as tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fewtune.util.table import Table

_OUTCOMES = ("refused", "told", "missed", "no effect")
_HEADINGS = ["seeded", *_OUTCOMES]


# Only inputs that models seldom get show these: what differs there is told, and refuses nothing.
_RARE = ("infinity lost", "digits lost far from zero", "huge element spread")


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """Sums over all models, rare inputs apart; the share refused of faults that have an effect."""
    every, rare = Counter[str](), Counter[str]()
    for model in results["models"].values():
        for kind, row in model["kinds"].items():
            (rare if kind in _RARE else every).update(row)
    judged = every["refused"] + every["told"] + every["missed"]
    return {
        "models": len(results["models"]),
        "faults": sum(every.values()),
        "refused": every["refused"],
        "told": every["told"],
        "missed": every["missed"],
        "no_effect": every["no effect"],
        "refused_pct": round(100 * every["refused"] / judged, 2) if judged else None,
        "rare": dict(sorted(rare.items())),
        "right_models": len(results["right"]),
        "right_refused": sum(used > 1 for used in results["right"].values()),
    }


def outcomes_of(model: dict[str, Any]) -> Counter[str]:
    """The outcomes of all faults of a model."""
    return sum(map(Counter, model["kinds"].values()), Counter())


def tables(results: dict[str, Any]) -> list[Table]:
    """Outcomes by kind of fault, and by model."""
    kinds: dict[str, Counter[str]] = {}
    for model in results["models"].values():
        for kind, row in model["kinds"].items():
            kinds.setdefault(kind, Counter()).update(row)
    models = [
        [name, *_cells(outcomes_of(model)), f"{model['right_used']:.2g}"]
        for name, model in results["models"].items()
    ]
    return [
        Table(["fault", *_HEADINGS], [[kind, *_cells(row)] for kind, row in kinds.items()]),
        Table(["model", *_HEADINGS, "allowance used when right"], models),
    ]


def _cells(row: Counter[str]) -> list[str]:
    return [str(sum(row.values())), *(str(row[each]) for each in _OUTCOMES)]
