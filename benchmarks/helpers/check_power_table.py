"""The results of `benchmarks.check_power` as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

# Right models that a whole run has at least.
WANTED_RIGHT = 60
_OUTCOMES = ("refused", "told", "missed", "no effect")


def totals(results: dict[str, Any]) -> dict[str, Any]:
    """Sums over all models, and the share refused of the faults that have an effect."""
    every: Counter[str] = Counter()
    for model in results["models"].values():
        for row in model["kinds"].values():
            every.update(row)
    judged = every["refused"] + every["told"] + every["missed"]
    return {
        "models": len(results["models"]),
        "faults": sum(every.values()),
        "refused": every["refused"],
        "told": every["told"],
        "missed": every["missed"],
        "no_effect": every["no effect"],
        "refused_pct": round(100 * every["refused"] / judged, 2) if judged else None,
        "right_models": len(results["right"]),
        "right_refused": sum(used > 1 for used in results["right"].values()),
    }


def table(results: dict[str, Any]) -> str:
    """The results in markdown."""
    sums = totals(results)
    most = max(results["right"].values(), default=0.0)
    missing = WANTED_RIGHT - sums["right_models"]
    unfinished = f" This run is not complete: {missing} right models are to follow." * (missing > 0)
    lines = [
        "# What the check of outputs refuses",
        "",
        f"{sums['faults']} seeded faults in {sums['models']} of {results.get('of_models', 0)} "
        f"models ({_conditions(results)}). "
        f"{sums['no_effect']} have no effect: the kernel writes the same numbers with them, to two "
        f"units in the last place, on every draw. Of the others {sums['refused']} "
        f"({sums['refused_pct']} %) are refused, {sums['told']} are told of inputs that models "
        f"seldom get, {sums['missed']} pass. "
        f"{sums['right_models']} right models use at most {most:.2g} of their allowance; "
        f"{sums['right_refused']} are refused.{unfinished} "
        "`python -m benchmarks.check_power` makes this table.",
        "",
        "| fault | seeded | refused | told | missed | no effect |",
        "| :--- | ---: | ---: | ---: | ---: | ---: |",
    ]
    kinds: dict[str, Counter[str]] = {}
    for model in results["models"].values():
        for kind, row in model["kinds"].items():
            kinds.setdefault(kind, Counter()).update(row)
    lines += [f"| {kind} | {_cells(row)} |" for kind, row in kinds.items()]
    lines += [
        "",
        "| model | kernels | compared inside | seeded | refused | told | missed | no effect "
        "| allowance used when right |",
        "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, model in results["models"].items():
        every: Counter[str] = Counter()
        for row in model["kinds"].values():
            every.update(row)
        lines.append(
            f"| {name} | {model['kernels']} | {model['taps']} | {_cells(every)} "
            f"| {model['right_used']:.2g} |"
        )
    missed = [
        f"- {name}: {text}" for name, model in results["models"].items() for text in model["missed"]
    ]
    refused = [f"- {name}: {text}" for name, text in results["refused_right"].items()]
    for title, rows in (("Missed", missed), ("Right, and refused", refused)):
        lines += ["", f"{title}:", "", *rows] if rows else []
    if missed:
        lines += [
            "",
            "What passes lies at the end of a quantised model. Its last kernels write floats, "
            "which are judged by the bytes after them; behind a softmax of 1,000 classes nearly "
            "all of these are zero. Of equal inputs two bytes of a kernel, or 0.5 %, may be off "
            "by one.",
        ]
    return "\n".join(lines) + "\n"


def _conditions(results: dict[str, Any]) -> str:
    """Seed, what LLVM takes the CPU for, and, of results since these are kept, commit and day."""
    conditions = [f"seed {results.get('seed')}", results.get("cpu"), results.get("commit")]
    return ", ".join(str(each) for each in [*conditions, results.get("date")] if each is not None)


def _cells(row: Counter[str]) -> str:
    return " | ".join([str(sum(row.values())), *(str(row[each]) for each in _OUTCOMES)])
