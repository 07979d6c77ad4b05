"""Half precision beside float32: ``python benchmarks/parts/half.py [NAME ...]``.

Models of the zoo are tuned in float32, in float16 (by onnxruntime's converter), and with products
in bfloat16 (``import_model.precision: bf16``), then take turns with onnxruntime's float32 and
float16. ``results/half.json`` is the list of rows, ``results/half.md`` the table; both are written
after each model. What an earlier call tuned in ``--work`` is not tuned again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from onnxruntime.transformers.float16 import convert_float_to_float16

from benchmarks.helpers.turns import in_turns, rows_by_model
from fewtune.api import TunedModel, tune
from fewtune.artifacts import Conditions, ImportReport
from fewtune.benchmark.benchmark import conditions_of
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.machine.device_lock import device_lock
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.interleave import latency_stats, ratio_stats
from fewtune.onnx_graph.external_data import load, save
from fewtune.onnx_graph.graph import graph_inputs
from fewtune.options import TuneOptions
from fewtune.report.conditions import conditions_lines
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import set_threads
from fewtune.util.table import Table, number
from fewtune.verify.session import OnnxruntimeSession
from fewtune.zoo.quantise import calibration_inputs
from fewtune.zoo.seeded import SeededOrigin, seeded_model
from stages.commit import commit

MODELS = ("squeezenet_v1_1", "resnet50_v1", "bert_mini")
_FLOAT, _HALF, _BFLOAT = "fp32", "fp16", "bf16"
_PEER = "onnxruntime"
_ROUNDS = 24


def tuned(name: str, work: Path, trials: int | None) -> dict[str, tuple[Path, TunedModel]]:
    """The model's file of each form, and what was tuned of it."""
    given, half = work / f"{name}.onnx", work / f"{name}-fp16.onnx"
    if not half.is_file():
        save(seeded_model(SeededOrigin("zoo", name), 0), given)
        save(convert_float_to_float16(load(given)), half)
    found = {}
    for form, path, options in (
        (_FLOAT, given, {}),
        (_HALF, half, {}),
        (_BFLOAT, given, {"import_model": {"precision": _BFLOAT}}),
    ):
        out = work / "tuned" / f"{name}-{form}"
        found[form] = path, tune(path, trials=trials, out=out, options=options)
    return found


def measure(name: str, work: Path, trials: int | None) -> dict[str, Any]:
    """Tune the forms of a model, then time them and onnxruntime's in turns."""
    forms = tuned(name, work, trials)
    fingerprint = detect_fingerprint(FingerprintOptions())
    set_threads(fingerprint.threads)
    target = target_from_json(fingerprint.target)
    runs: dict[str, Callable[[], Any]] = {}
    for form, (path, result) in forms.items():
        model = load(path)
        feeds = calibration_inputs(model, 0, 1)[0]
        compiled = CompiledModel(result.library, target)
        compiled.set_inputs([feeds[each.name] for each in graph_inputs(model.graph)])
        runs[form] = compiled.run
        if form != _BFLOAT:
            session = OnnxruntimeSession(path, fingerprint.threads)
            runs[f"{_PEER} {form}"] = partial(session.run, feeds)
    with device_lock("cpu", "benchmark half"):
        samples = in_turns(runs, forms, _ROUNDS)
    row: dict[str, Any] = {"model": name}
    for run, taken in samples.items():
        row[f"{run}_ms"] = latency_stats(taken).median_ms
        row[f"{run} over {_FLOAT}"] = ratio_stats(taken, samples[_FLOAT]).model_dump()
    row["left_out"] = {
        form: ImportReport.read(result.directory / "import").left_out
        for form, (_, result) in forms.items()
    }
    options = BenchmarkOptions(rounds=_ROUNDS, copies=1)
    asked = trials or TuneOptions().trials_per_task
    conditions = conditions_of(fingerprint, options, asked, commit=commit())
    return row | {"conditions": conditions.model_dump(mode="json")}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, with their conditions."""
    runs = [key.removesuffix("_ms") for key in rows[0] if key.endswith("_ms")]
    headings = ["model", *(f"{run} ms" for run in runs)]
    headings += [f"{run}: times {_FLOAT}" for run in runs if run != _FLOAT]
    lines = []
    for row in rows:
        ratios = [row[f"{run} over {_FLOAT}"] for run in runs if run != _FLOAT]
        line = [row["model"], *(number(row[f"{run}_ms"]) for run in runs)]
        line += [f"{each['median']:.2f} [{each['p10']:.2f} - {each['p90']:.2f}]" for each in ratios]
        lines.append(line)
    notes = conditions_lines(
        [(row["model"], Conditions.model_validate(row["conditions"])) for row in rows]
    )
    return (
        "# Half precision\n\nModels of the zoo in turns. ``times fp32``: latency over that of our "
        "float32, round by round: median and 10th to 90th percentile; above 1 is "
        "slower.\n\n"
        f"{Table(headings, lines, left=frozenset({0})).markdown()}\n" + "\n".join(notes) + "\n"
    )


if __name__ == "__main__":
    rows_by_model("half", __doc__ or "", MODELS, measure, markdown)
