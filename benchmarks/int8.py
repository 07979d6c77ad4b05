"""Eight bits beside onnxruntime's and OpenVINO's: ``python benchmarks/int8.py [NAME ...]``.

Models of the zoo are quantized by onnxruntime (`benchmarks.zoo.quantize`), tuned as they
came and in eight bits, and then take turns: ours in eight bits, onnxruntime's and OpenVINO's of the
same file, ours in fp32. ``results/int8.json`` is the list of rows, ``results/int8.md`` the table;
both are written after each model. What an earlier call tuned in ``--work`` is not tuned again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import one_line_errors
from benchmarks.zoo.quantize import SUFFIX, calibration_inputs
from benchmarks.zoo.registry import written
from fewtune.api import tune
from fewtune.benchmark.peers import OpenvinoSession, openvino_version
from fewtune.errors import InputError
from fewtune.machine.device_lock import device_lock
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.machine.host import cores_off_the_pool, on_cores
from fewtune.measure import interleave
from fewtune.measure.interleave import latency_stats, ratio_stats
from fewtune.onnx_graph.external_data import load
from fewtune.options import TuneOptions
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads
from fewtune.util.files import canonical_json, write_text
from fewtune.util.table import MISSING, Table
from fewtune.verify.session import OnnxruntimeSession

Row = dict[str, Any]


def in_turns(
    runs: Mapping[str, Callable[[], Any]], own: Collection[str], rounds: int
) -> dict[str, list[float]]:
    """Time inferences in turns.

    Threads are placed as `fewtune.benchmark.variants` places them, which says why.

    Parameters
    ----------
    runs : mapping of str to callable
        One inference each.
    own : collection of str
        Those that TVM's runtime runs.
    rounds : int

    Returns
    -------
    samples : dict of str to list of float
        Seconds of one inference, a sample a round.
    """
    for name in own:
        runs[name]()
    roaming, apart = os.sched_getaffinity(0), cores_off_the_pool()
    placed = {
        name: partial(on_cores, apart if name in own else roaming, run)
        for name, run in runs.items()
    }
    try:
        return interleave.interleave(placed, rounds, together=frozenset(own))
    finally:
        os.sched_setaffinity(0, roaming)


def rows_by_model(
    name: str,
    about: str,
    models: Sequence[str],
    measure: Callable[[str, Path, int | None], Row],
    markdown: Callable[[list[Row]], str],
) -> None:
    """A command that measures model after model, and writes JSON and table after each.

    Parameters
    ----------
    name : str
        Of the benchmark, its scratch folder and its results.
    about : str
        Its module's docstring.
    models : sequence of str
        Measured unless others are named; their rows come first.
    measure : callable
        Takes a model's name, the scratch folder and the trials a task; gives the model's row.
    markdown : callable
        The page of some rows.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", metavar="NAME", help=f"of the zoo; {', '.join(models)} unless given"
    )
    parser.add_argument("--work", type=Path, default=Path(".fewtune") / name, help="scratch folder")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where tables go")
    parser.add_argument("--trials", type=int, help="a task; the default of `tune` unless given")
    asked = parser.parse_args()
    path = asked.results / f"{name}.json"
    rows = {row["model"]: row for row in json.loads(path.read_text())} if path.is_file() else {}
    asked.work.mkdir(parents=True, exist_ok=True)
    with one_line_errors(name):
        for model in asked.models or models:
            rows[model] = measure(model, asked.work, asked.trials)
            print(rows[model], flush=True)
            known = [rows[each] for each in dict.fromkeys([*models, *rows]) if each in rows]
            write_text(path, canonical_json(known))
            write_text(path.with_suffix(".md"), markdown(known))


MODELS = (
    "squeezenet_v1_1",
    "mobilenet_v2",
    "resnet50_v1",
    "yolov3_mobilenet",
    "vgg19_bn",
    "bert_mini",
)
_ROUNDS = 15
_OURS, _ONNXRUNTIME, _OPENVINO, _FLOAT = "ours_ms", "onnxruntime_ms", "openvino_ms", "own_fp32_ms"
# Latency of each over ours, round by round: median, 10th and 90th percentile.
_TIMES = {_ONNXRUNTIME: "x_onnxruntime", _OPENVINO: "x_openvino", _FLOAT: "x_own_fp32"}


def measure(name: str, work: Path, trials: int | None) -> dict[str, Any]:
    """Tune both forms of a model, then time them and the peers in turns."""
    given, made = written(name, work), written(name + SUFFIX, work)
    tuned = {
        key: tune(path, trials=trials, out=work / "tuned" / f"{name}-{key}")
        for key, path in (("int8", made), ("fp32", given))
    }
    fingerprint = detect_fingerprint(FingerprintOptions())
    set_threads(fingerprint.threads)
    target = target_from_json(fingerprint.target)
    model = load(made)
    inputs = calibration_inputs(model, 0, 1)[0]
    order = [value.name for value in model.graph.input]
    runs: dict[str, Callable[[], Any]] = {}
    for key, column in (("int8", _OURS), ("fp32", _FLOAT)):
        compiled = CompiledModel(tuned[key].library, target)
        compiled.set_inputs([inputs[each] for each in order])
        runs[column] = compiled.run
    session = OnnxruntimeSession(made, fingerprint.threads, measured=True)
    runs[_ONNXRUNTIME] = lambda: session.run(inputs)
    row: dict[str, Any] = {"model": name, _OPENVINO: None}
    if openvino_version() is not None:
        try:
            runs[_OPENVINO] = OpenvinoSession(made, fingerprint.threads, inputs).run
        except InputError as error:
            row["openvino_remark"] = str(error)
    with device_lock("cpu", "benchmark int8"):
        row |= measured(runs)
    row["threads"] = fingerprint.threads
    versions = {"apache-tvm", "onnxruntime"} & fingerprint.versions.keys()
    row["conditions"] = ", ".join(
        [
            f"{fingerprint.device}, target {target.kind.name} {target.attrs.get('mcpu', '')}",
            f"{fingerprint.threads} threads, {_ROUNDS} rounds",
            f"{trials or TuneOptions().trials_per_task} trials a task",
            *(f"{each} {fingerprint.versions[each]}" for each in sorted(versions)),
            f"OpenVINO {openvino_version() or 'not installed'}",
            time.strftime("%Y-%m-%d", time.gmtime()),
        ]
    )
    return row


def measured(runs: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Medians over rounds, in milliseconds, and how many times faster ours was, round by round."""
    samples = in_turns(runs, {_OURS, _FLOAT}, _ROUNDS)
    found: dict[str, Any] = {
        name: round(latency_stats(taken).median_ms, 4) for name, taken in samples.items()
    }
    for name, taken in samples.items():
        if name != _OURS:
            times = ratio_stats(taken, samples[_OURS])
            spread = {"median": times.median, "p10": times.p10, "p90": times.p90}
            found[_TIMES[name]] = {key: round(value, 3) for key, value in spread.items()}
    return found


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table, with the geometric means of the ratios."""
    ratios: dict[str, list[float]] = {_ONNXRUNTIME: [], _OPENVINO: [], _FLOAT: []}
    lines = []
    for row in rows:
        cells = [row["model"], f"{row[_OURS]:.3f}"]
        for column, found in ratios.items():
            other = row.get(column)
            cells.append(MISSING if other is None else f"{other:.3f}")
            if other is None:
                cells.append(MISSING)
                continue
            times = row[_TIMES[column]]
            cells.append(f"{times['median']:.2f} [{times['p10']:.2f} - {times['p90']:.2f}]")
            found.append(times["median"])
        lines.append(cells)
    means = ["geometric mean", ""]
    for found in ratios.values():
        means += ["", f"{np.exp(np.mean(np.log(found))):.2f}" if found else MISSING]
    headings = ("model", "ours ms", "onnxruntime ms", "times", "OpenVINO ms", "times",
                "own fp32 ms", "times")  # fmt: skip
    table = Table(headings, [tuple(line) for line in [*lines, means]], left=frozenset({0}))
    return (
        "# Eight bits\n\nModels of the zoo by onnxruntime's quantizer, "
        f"{rows[0]['threads'] if rows else 0} threads, in turns. ``times``: latency of that column "
        "over ours in eight bits, round by round: median and 10th to 90th percentile.\n\n"
        + table.markdown()
        + "\n\nMeasured on "
        + "; ".join(dict.fromkeys(row["conditions"] for row in rows))
        + ".\n"
    )


if __name__ == "__main__":
    rows_by_model("int8", __doc__ or "", MODELS, measure, markdown)
