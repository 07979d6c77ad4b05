"""One library of several shapes beside one a shape: ``python benchmarks/shapes.py MODEL ...``.

For example ``python benchmarks/shapes.py bert.onnx --dimension batch=1 --dimension
sequence=16,32,64,128``. The model is tuned at its largest shape alone, at all shapes together, and
at each shape alone in full; the libraries of a shape are then measured in turns.

``results/shapes.json`` is a list, a model each: ``shapes``, ``one_shape_s`` and ``all_shapes_s``
(predicting, selecting, tuning and sharing), ``one_whole_s`` and ``all_whole_s`` (all steps from
import to benchmark), ``least_pct`` (the least of the shapes' latencies alone in full over those in
the library of all), ``size_ratio`` (that library's bytes over the largest shape's).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fewtune
from benchmarks.helpers.common import one_line_errors
from fewtune.artifacts import MAIN, Fingerprint, ImportReport
from fewtune.benchmark import interleave
from fewtune.machine.device_lock import device_lock
from fewtune.model.import_model import shape_folder
from fewtune.pipelines.commands.given import given_inputs
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import Table, number, percent
from fewtune.verify.reference import Reference

RESULTS = Path(__file__).resolve().parents[1] / "results"


def main() -> None:
    """Measure one model, and write the table with the models measured before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    for option in ("--shape", "--dimension"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--no-full", action="store_true", help="leave out full tuning")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    with one_line_errors("shapes"), tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        line = measured(options, given_inputs(options), Path(scratch))
    path = options.output / "shapes.json"
    lines = json.loads(path.read_text()) if path.is_file() else []
    lines = sorted(
        [line, *(each for each in lines if each["model"] != line["model"])],
        key=lambda each: str(each["model"]),
    )
    write_text(path, canonical_json(lines))
    write_text(options.output / "shapes.md", page(lines))
    print(page([line]))


def measured(options: argparse.Namespace, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The line of one model."""
    tuning = {"trials": options.trials, "options": {"benchmark": {"rounds": 6, "copies": 1}}}

    def tuned(name: str, shapes: Any, **more: Any) -> tuple[fewtune.TunedModel, float]:
        # What one run keeps would help the next.
        os.environ["XDG_CACHE_HOME"] = str(folder / f"{name} cache")
        began_s = time.perf_counter()
        made = fewtune.tune(options.model, shapes, out=folder / name, **tuning, **more)
        return made, time.perf_counter() - began_s

    every, every_s = tuned("all", given["shapes"], dimensions=given["dimensions"])
    functions = ImportReport.read(folder / "all" / "import").functions
    shapes = [{spec.name: spec.shape for spec in each.inputs} for each in functions]
    largest, largest_s = tuned("largest", shapes[0])
    percents = []
    for place, each in enumerate(functions if not options.no_full else ()):
        alone, _ = tuned(each.function, shapes[place], strategy="full")
        percents.append(_achieved_pct(every, alone, each.function, options.rounds))
    return {
        "model": options.model.stem,
        "shapes": [each.text for each in functions],
        "one_shape_s": largest.tuning_s,
        "all_shapes_s": every.tuning_s,
        "one_whole_s": largest_s,
        "all_whole_s": every_s,
        "achieved_pct": percents,
        "least_pct": min(percents, default=None),
        "size_ratio": every.library.stat().st_size / largest.library.stat().st_size,
    }


def _achieved_pct(
    every: fewtune.TunedModel, alone: fewtune.TunedModel, function: str, rounds: int
) -> float:
    """The latency of a shape alone over its latency in the library of all, in turns."""
    feeds = Reference.read(shape_folder(every.directory / "import", function)).feeds
    order = [spec.name for spec in ImportReport.read(every.directory / "import").inputs]
    target = target_from_json(Fingerprint.read(every.directory / "fingerprint").target)
    runs = {}
    for name, library, called in (("all", every, function), ("alone", alone, MAIN)):
        compiled = CompiledModel(library.library, target).at(called)
        compiled.set_inputs([feeds[each] for each in order])
        runs[name] = [compiled.run]
    with device_lock("cpu", "benchmark shapes"):
        samples_s = interleave.interleave(runs, rounds, together=frozenset(runs))
    return 100 * interleave.ratio_stats(samples_s["alone"], samples_s["all"]).median


def page(lines: list[dict[str, Any]]) -> str:
    """The results as markdown."""
    rows = [
        [
            line["model"],
            str(len(line["shapes"])),
            number(line["one_shape_s"]),
            number(line["all_shapes_s"]),
            f"{line['all_shapes_s'] / line['one_shape_s']:.2f}",
            f"{line['all_whole_s'] / line['one_whole_s']:.2f}" if "all_whole_s" in line else "-",
            percent(line["least_pct"]),
            f"{line['size_ratio']:.2f}",
        ]
        for line in lines
    ]
    heads = ["model", "shapes", "largest s", "all s", "x", "x whole", "achieved perf %", "size x"]
    return f"# Several shapes in one library\n\n{Table(heads, rows).markdown()}"


if __name__ == "__main__":
    main()
