"""Python with one mechanism of the tuner off, for `benchmarks.parts.mechanisms`.

``without.py NAME FOLDER MODEL TRIALS SEED`` tunes a model into a folder, up to its library.
``without.py NAME -m MODULE ...`` stands for Python in the processes that this starts
(`fewtune.process.child_python`), so that the mechanism is off in them, too.
"""

from __future__ import annotations

import importlib
import math
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

NAME = "model"
# The folders that steps write, in their order.
STEPS = ("fingerprint", "import", "tasks", "bank", "select", "tune", "share", "compile")


@dataclass(frozen=True)
class Off:
    """A mechanism off.

    Attributes
    ----------
    name : str
    first : str
        The first step that differs; those before it are taken from the run with everything on.
    options : mapping
        Options by section that differ.
    steps : tuple of str
        Optional steps of the import that are left out.
    replaced : mapping
        ``MODULE:NAME`` or ``MODULE:CLASS.NAME`` to what stands there instead.
    rules : mapping
        Rules of sharing that differ (`fewtune.sharing.rules`).
    """

    name: str
    first: str = "import"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    replaced: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)


def _nothing(*_: object) -> list[Any]:
    return []


def _zeros(_: object, __: object, features: Any) -> Any:
    import numpy as np

    return np.zeros(len(features))


def _same(module: Any, _: object) -> Any:
    return module


_PREDICTOR = {name: {"predictor": "never"} for name in ("tune", "share_schedules")}
_TIMER = "fewtune.timing.timer"
ALL_ON = "all on"
OFF = (
    Off(ALL_ON, "fingerprint"),
    # How far two equal runs lie apart.
    Off("nothing (noise)", "tune"),
    Off("Winograd's transforms", steps=("winograd",)),
    Off("transposed convolutions", steps=("transposed_convolutions",)),
    Off("layout-free weights", steps=("free_weight_layout",)),
    Off("padding", steps=("pad_filters", "pad_matmul", "pad_softmax")),
    Off("vector functions", steps=("vector_functions",)),
    Off("in-place concatenation", "compile", {"compile": {"in_place": "never"}}),
    Off("register tiles and predictor", "tune", {"tune": {"informed_start": False}}),
    Off("predictor", "tune", _PREDICTOR),
    Off(
        "its correction",
        "tune",
        replaced={"fewtune.predictor.gaussian_process:Residual.correction": _zeros},
    ),
    Off(
        "prefetching",
        "tune",
        replaced={
            "fewtune.workers.kernel_build:prefetched": _same,
            "fewtune.compile.build:prefetched": _same,
        },
    ),
    Off(
        "long rows",
        "tune",
        replaced={"fewtune.schedule.space.search_space:vectorize_long_rows": _nothing},
    ),
    Off(
        "states of the caches",
        "tune",
        replaced={
            f"{_TIMER}:{each}": _nothing
            for each in ("to_be_flushed", "to_be_rewritten", "to_be_evicted")
        },
    ),
    Off("calibration", "tune", replaced={"fewtune.timing.calibration:_MOST_REPEATS": 0}),
    Off("finals", "share", {"share_schedules": {"finals": 0}}),
    Off(
        "the neighbours' charge",
        "share",
        replaced={"fewtune.workers.model_runner:followers": lambda touched: [[] for _ in touched]},
    ),
    Off(
        "search of slow tasks",
        "share",
        replaced={"fewtune.sharing.search_round:SearchRound.hold": _nothing},
    ),
    # This one is a rule that leaves finals out: what is measured is the finals it leaves out.
    Off("one contender of long kernels", "share", rules={"finalists": {"long_s": math.inf}}),
)
BY_NAME = {off.name: off for off in OFF}


def apply(off: Off) -> None:
    """Turn the mechanism off in this process."""
    if off.steps:
        from fewtune.process.optional_steps import OptionalSteps

        uses: Callable[[OptionalSteps, str], bool] = OptionalSteps.uses
        OptionalSteps.uses = lambda self, name: name not in off.steps and uses(self, name)
    if off.rules:
        from fewtune.sharing import rules

        # Before the module that shares is loaded, which takes them from there.
        finalists = {**asdict(rules.RULES.finalists), **off.rules.get("finalists", {})}
        rules.RULES = replace(
            rules.RULES, **{**off.rules, "finalists": rules.FinalistRules(**finalists)}
        )
    for place, stand_in in off.replaced.items():
        module, _, name = place.partition(":")
        owner = importlib.import_module(module)
        *classes, last = name.split(".")
        for each in classes:
            owner = getattr(owner, each)
        # What is no longer there cannot be turned off.
        getattr(owner, last)
        setattr(owner, last, stand_in)


def tuned(off: Off, folder: Path, model: str, trials: int, seed: int) -> None:
    """Tune a model selectively, up to its library; what stands from an equal run is taken."""
    from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
    from fewtune.model.source import add_model
    from fewtune.steps.sections import sections
    from fewtune.steps.steps import Run

    add_model(model, folder / "models", NAME, replace=True)
    fingerprint = detect_fingerprint(FingerprintOptions())
    options = sections(off.options, "selective", trials, None, seed)
    Run(folder, fingerprint, options, "selective", last="compile").go()


def main(arguments: list[str]) -> None:
    """Do what Python, or a tuning, does, with the mechanism off."""
    off, rest = BY_NAME[arguments[0]], arguments[1:]
    apply(off)
    if rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        return
    folder, model, trials, seed = rest
    stand_in = Path(folder) / "python"
    stand_in.parent.mkdir(parents=True, exist_ok=True)
    stand_in.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{__file__}' \"{off.name}\" \"$@\"\n")
    stand_in.chmod(0o755)
    os.environ["FEWTUNE_PYTHON"] = str(stand_in.resolve())
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    tuned(off, Path(folder), model, int(trials), int(seed))


if __name__ == "__main__":
    main(sys.argv[1:])
