"""The ablation's variants, and how one is made from what the full run left."""

from __future__ import annotations

import inspect
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts import selections
from benchmarks.parts.ablation_table import row_of
from fewtune.artifacts import Curve, Fingerprint, Metrics, Selection, TuneReport
from fewtune.compile.compile import compile_model
from fewtune.compile.options import CompileOptions
from fewtune.errors import InputError
from fewtune.model.import_model import read_lowered
from fewtune.options import ShareOptions
from fewtune.runtime.target import target_from_json
from fewtune.search.warm_start import measured_trials
from fewtune.sharing.share import share_schedules
from fewtune.storage.database import read_database, write_database
from fewtune.storage.log_archive import log_info, require_own
from fewtune.task.extract import Task
from stages.params import load_section
from stages.paths import Places

STRATEGY = "ablation"


@dataclass(frozen=True)
class Variant:
    """One line of the table: how representatives are chosen, and what differs in sharing.

    Parameters
    ----------
    name : str
    choose : callable
        From `benchmarks.parts.selections`.
    share : dict
        Fields of `ShareOptions` other than the run's.
    arguments : dict
        Further arguments of `share_schedules`.
    by_similarity : bool
        Whether choosing needs the similarities, whose seconds then count.
    """

    name: str
    choose: selections.Choose = selections.cliques
    share: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    by_similarity: bool = True

    @property
    def possible(self) -> bool:
        """Whether this version has all that the variant changes."""
        known = inspect.signature(share_schedules).parameters
        return self.share.keys() <= ShareOptions.model_fields.keys() and (
            self.arguments.keys() <= known.keys()
        )


# As many candidates are measured as are shared, where that is fewer than by default.
_MEASURED = ShareOptions.model_fields["trials_per_task"].default
VARIANTS = (
    Variant("cliques"),
    Variant("agglomerative", selections.agglomerative),
    # A single draw can be lucky.
    *(
        Variant(f"random {seed}", partial(selections.random_representatives, seed=seed))
        for seed in (1, 2, 3)
    ),
    Variant("one a family", selections.one_a_family, by_similarity=False),
    Variant("equal anchors", selections.equal_anchors, by_similarity=False),
    # How far two equal variants differ.
    Variant("cliques again"),
    *(
        Variant(f"top {top}", share={"top": top, "trials_per_task": min(top, _MEASURED)})
        for top in (1, 3, 10)
    ),
    Variant("no drawn schedules", share={"draws": 0}),
)


@dataclass(frozen=True)
class Full:
    """What the full run of a model left, which all variants take from."""

    places: Places
    model: str

    @property
    def tune_directory(self) -> Path:
        return self.places.tuned(self.model, "full")

    @property
    def metrics(self) -> Metrics:
        return Metrics.read(self.places.benchmarked(self.model, "full"))


def write_tuned(
    full_directory: Path,
    tasks: list[Task],
    selection: Selection,
    fingerprint: Fingerprint,
    directory: Path,
) -> TuneReport:
    """Write a folder as the tune stage does, with what the full run knows of the representatives.

    Its seconds are those that the full run spent on these tasks. They are not parted by phase, and
    there is no curve.

    Raises
    ------
    InputError
        If the full run did not tune one of them.
    """
    require_own(full_directory, fingerprint)
    full = TuneReport.read(full_directory)
    lines = {line.task: line for line in full.tasks}
    chosen = sorted(selection.representatives)
    missing = [name for name in chosen if name not in lines]
    if missing:
        raise InputError(f"the full run did not tune {', '.join(missing)}: run it again")
    by_name = {task.info.name: task for task in tasks}
    trials = measured_trials(read_database(full_directory), [by_name[name] for name in chosen])
    directory.mkdir(parents=True)
    modules = {name: by_name[name].mod for name in chosen}
    write_database(directory, modules, trials, target_from_json(fingerprint.target))
    log_info(fingerprint).write(directory)
    Curve(points=[]).write(directory)
    report = full.model_copy(
        update={
            "strategy": selection.strategy,
            "tasks": [lines[name] for name in chosen],
            "trials": sum(lines[name].trials for name in chosen),
            "tuning_s": round(sum(lines[name].tuning_s for name in chosen), 3),
            **dict.fromkeys(("search_s", "build_s", "run_s", "model_update_s"), 0.0),
        }
    )
    report.write(directory)
    return report


@dataclass(frozen=True)
class Ready:
    """A variant's library and what it took."""

    row: dict[str, Any]
    library: Path


def make(
    variant: Variant,
    selection: Selection,
    selecting_s: float,
    full: Full,
    tasks: list[Task],
    fingerprint: Fingerprint,
    work: Path,
) -> Ready:
    """Share and compile one variant in ``work``; the journal beside it outlives a kill."""
    places, model, key = full.places, full.model, variant.name.replace(" ", "_")
    shutil.rmtree(work / key, ignore_errors=True)
    tuned_to, shared_to, compiled_to = (work / key / name for name in ("tune", "share", "compile"))
    shared_to.mkdir(parents=True)
    compiled_to.mkdir()
    tuned = write_tuned(full.tune_directory, tasks, selection, fingerprint, tuned_to)
    settings = load_section("share_schedules").model_dump()
    shared = share_schedules(
        tasks,
        selection,
        tuned_to,
        fingerprint,
        ShareOptions.model_validate({**settings, **variant.share}),
        places.journal(model, STRATEGY, key),
        shared_to,
        model_directory=places.tasks(model),
        **variant.arguments,
    )
    compiled = compile_model(
        read_lowered(places.imported(model)),
        tasks,
        shared_to,
        places.imported(model),
        fingerprint,
        CompileOptions(),
        compiled_to,
        model=model,
        strategy=variant.name,
    )
    row = row_of(
        variant.name, selection, selecting_s, tuned, shared, full.metrics.tuning_s, compiled
    )
    return Ready(row, compiled_to / compiled.library)
