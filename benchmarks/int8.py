"""Eight bits beside onnxruntime's and OpenVINO's: ``python benchmarks/int8.py [NAME ...]``.

Models of the zoo are quantized by onnxruntime (`benchmarks.zoo.quantize`), tuned as they
came and in eight bits, and then take turns: ours in eight bits, onnxruntime's and OpenVINO's of the
same file, ours in fp32. ``results/int8.json`` is the list of rows, ``results/int8.md`` the table;
both are written after each model. What an earlier call tuned in ``--work`` is not tuned again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.anytime import BYTES
from benchmarks.helpers.common import alone, one_line_errors, write_page
from benchmarks.zoo.quantize import SUFFIX
from benchmarks.zoo.registry import written
from fewtune.api import tune
from fewtune.artifacts import Conditions, Fingerprint
from fewtune.benchmark.interleave import latency_stats, ratio_stats
from fewtune.benchmark.variants import Variants
from fewtune.options import BenchmarkOptions, TuneOptions
from fewtune.report.tables import conditions_lines
from fewtune.stages.commit import commit
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import MISSING, Table, number

_ROUNDS = 15
_OURS = "ours"
# Headings by what the rows hold of each: its milliseconds, and its latency over ours.
_OTHERS = {"onnxruntime": "onnxruntime", "openvino": "OpenVINO", "own_fp32": "own fp32"}


def measure(name: str, work: Path, trials: int) -> dict[str, Any]:
    """Tune both forms of a model, then time them and the peers in turns."""
    files = {_OURS: written(name + SUFFIX, work), "own_fp32": written(name, work)}
    tuned = {
        key: tune(path, trials=trials, out=work / "tuned" / f"{name}-{key}")
        for key, path in files.items()
    }
    folder = tuned[_OURS].directory
    fingerprint = Fingerprint.read(folder / "fingerprint")
    libraries = {key: each.library for key, each in tuned.items()}
    with alone("int8"):
        options = BenchmarkOptions(rounds=_ROUNDS, copies=1)
        variants = Variants(folder / "import", libraries, fingerprint, options, untuned=False)
        samples = variants.measured(_ROUNDS)
    row: dict[str, Any] = {"model": name, "threads": fingerprint.threads}
    for key, taken in samples.items():
        row[f"{key}_ms"] = round(latency_stats(taken).median_ms, 4)
        # Over ours, round by round.
        times = ratio_stats(taken, samples[_OURS])
        row[f"x_{key}"] = {"median": times.median, "p10": times.p10, "p90": times.p90}
    conditions = Conditions(
        fingerprint=fingerprint,
        trials_per_task=trials,
        commit=commit(),
        peers=variants.peers,
        **dict(options),
    )
    (row["conditions"],) = conditions_lines([(name, conditions)])
    return row | {"remarks": variants.remarks}


def page(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, with the geometric means of the ratios."""
    lines = []
    for row in rows:
        cells = [row["model"], number(row["ours_ms"])]
        for key in _OTHERS:
            times = row.get(f"x_{key}")
            cells.append(number(row.get(f"{key}_ms")))
            cells.append(
                "{median:.2f} [{p10:.2f} - {p90:.2f}]".format(**times) if times else MISSING
            )
        lines.append(cells)
    means = ["geometric mean", ""]
    for key in _OTHERS:
        found = [row[f"x_{key}"]["median"] for row in rows if f"x_{key}" in row]
        means += ["", f"{geometric_mean(found):.2f}" if found else MISSING]
    headings = ["model", "ours ms"]
    for heading in _OTHERS.values():
        headings += [f"{heading} ms", "times"]
    conditions = "\n".join(dict.fromkeys(row["conditions"] for row in rows))
    return (
        "# Eight bits\n\nModels of the zoo by onnxruntime's quantizer, in turns. *times*: latency "
        "of that column over ours in eight bits, round by round: median and 10th to 90th "
        f"percentile.\n\n{Table(headings, [*lines, means]).markdown()}\n{conditions}\n"
    )


def main() -> None:
    """Measure model after model, and write JSON and page after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="NAME", help="of the zoo")
    parser.add_argument("--work", type=Path, default=Path(".fewtune/int8"), help="scratch folder")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where tables go")
    parser.add_argument("--trials", type=int, default=TuneOptions().trials_per_task, help="a task")
    asked = parser.parse_args()
    path = asked.results / "int8.json"
    rows = {row["model"]: row for row in json.loads(path.read_text())} if path.is_file() else {}
    asked.work.mkdir(parents=True, exist_ok=True)
    with one_line_errors("int8"):
        for model in asked.models or BYTES:
            rows[model] = measure(model, asked.work, asked.trials)
            print(rows[model], flush=True)
            known = [rows[each] for each in dict.fromkeys([*BYTES, *rows]) if each in rows]
            write_text(path, canonical_json(known))
            write_page(path.with_suffix(".md"), page(known))


if __name__ == "__main__":
    main()
