"""The table of ``wild.py``: a row a model, from what the stages wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from fewtune.artifacts import (
    Artifact,
    BenchmarkReport,
    CompileReport,
    ImportReport,
    KernelRow,
    Metrics,
)
from fewtune.report.tables import conditions_lines
from fewtune.stages.params import COMPARED
from fewtune.stages.paths import Places
from fewtune.util.table import MISSING, Table, number, percent

_SELECTIVE = COMPARED[0]
# Kernels that a slower model is explained by.
_KERNELS = 3


Written = TypeVar("Written", bound=Artifact)


class Row(BaseModel):
    """One model: what it is, how it was imported, what it cost and how fast it is."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kind: str
    source: str
    licence: str
    given: list[str]
    code: str | None = None
    wall_s: float | None = None
    failed: str | None = None
    inputs: list[str] = []
    layout: str | None = None
    left_out: list[str] = []
    allowances: float | None = None
    tasks: int | None = None
    trials: int | None = None
    tuning_s: float | None = None
    latency_ms: float | None = None
    onnxruntime_ms: float | None = None
    openvino_ms: float | None = None
    over_onnxruntime: float | None = None
    over_openvino: float | None = None
    openvino_remark: str | None = None
    slowest: list[str] = []
    conditions: str | None = None

    @property
    def over_faster(self) -> float | None:
        """How many times as fast as the faster of the peers that ran it."""
        known = [ratio for ratio in (self.over_onnxruntime, self.over_openvino) if ratio]
        return min(known, default=None)

    def summary(self) -> str:
        """The row in a few words."""
        if self.failed:
            return f"failed: {self.failed}"
        return (
            f"{number(self.latency_ms)} ms, {_times(self.over_onnxruntime)} times as fast as "
            f"onnxruntime, {_times(self.over_openvino)} as OpenVINO, "
            f"{number(self.tuning_s)} s tuning"
        )


def row_of_results(row: Row, places: Places) -> Row:
    """Fill a row with what the stages wrote, as far as they came."""
    name, found = row.name, row.model_copy()
    imported = _read(ImportReport, places.imported(name))
    if imported is not None:
        found.inputs = [
            f"{it.name} {'x'.join(map(str, it.shape)) or 'scalar'} {it.dtype}"
            for it in imported.inputs
        ]
        found.layout = imported.layout
        found.left_out = list(getattr(imported, "left_out", []))
        if imported.layout != "NHWC" and imported.layout_note:
            found.left_out.append(imported.layout_note)
        found.allowances = imported.allowances
    compiled = _read(CompileReport, places.compiled(name, _SELECTIVE))
    if compiled is not None:
        found.allowances = compiled.allowances
    folder = places.benchmarked(name, _SELECTIVE)
    report, metrics = _read(BenchmarkReport, folder), _read(Metrics, folder)
    if report is None or metrics is None:
        return found
    found.tasks, found.trials, found.tuning_s = metrics.tasks, metrics.trials, metrics.tuning_s
    found.latency_ms = metrics.latency_ms
    found.onnxruntime_ms = metrics.onnxruntime_latency_ms
    found.over_onnxruntime = metrics.speedup_over_onnxruntime
    found.openvino_ms = metrics.openvino_latency_ms
    found.over_openvino = metrics.speedup_over_openvino
    found.openvino_remark = next((it for it in report.remarks if it.startswith("OpenVINO")), None)
    heaviest = sorted(report.kernels, key=lambda kernel: -(kernel.share or 0.0))
    found.slowest = [_kernel_text(kernel) for kernel in heaviest[:_KERNELS]]
    (found.conditions,) = conditions_lines([(name, report.conditions)])
    return found


def _read(kind: type[Written], folder: Path) -> Written | None:
    """What a stage wrote, None where it did not come so far."""
    return kind.read(folder) if (folder / kind.file_name).is_file() else None


def _kernel_text(kernel: KernelRow) -> str:
    share = MISSING if kernel.share is None else percent(100 * kernel.share)
    return f"{kernel.task} {share} % ({kernel.schedule})"


def wild_markdown(rows: Sequence[Row]) -> str:
    """The page: speed, what went wrong, sources, conditions."""
    parts = [
        "# Trained models from public packages\n\n"
        "By `python benchmarks/wild.py`: models as they lie in packages of the Python registry, "
        "each added and run as a user would. *x over*: the peer's latency over ours, in turns; "
        "*error / allowance*: of what rounding may move the outputs by, at most 1.\n\n",
        _speed_table(rows).markdown(),
        f"\n{_summary(rows)}\n",
    ]
    slower = [row for row in rows if row.over_faster is not None and row.over_faster < 1]
    if slower:
        parts.append("\n## Slower than the faster peer\n\nThe kernels that take most:\n\n")
        parts += [f"- {row.name} ({_times(row.over_faster)}): {'; '.join(row.slowest)}\n"
                  for row in slower]  # fmt: skip
    failed = [f"- {row.name}: {row.failed}\n" for row in rows if row.failed]
    failed += [f"- {row.name}: {row.openvino_remark}\n" for row in rows if row.openvino_remark]
    if failed:
        parts += ["\n## Failures\n\n", *failed]
    parts += ["\nSources, licences and shapes: [wild.toml](../benchmarks/wild.toml).\n\n"]
    parts += _conditions(rows)
    return "".join(parts)


def _speed_table(rows: Sequence[Row]) -> Table:
    headings = [
        "model", "kind", "error / allowance", "tasks", "tuning s",
        "latency ms", "onnxruntime ms", "x over onnxruntime", "OpenVINO ms", "x over OpenVINO",
    ]  # fmt: skip
    return Table(
        headings,
        [
            [
                row.name,
                row.kind,
                MISSING if row.allowances is None else f"{row.allowances:.2f}",
                MISSING if row.tasks is None else str(row.tasks),
                number(row.tuning_s),
                "failed" if row.failed else number(row.latency_ms),
                number(row.onnxruntime_ms),
                _times(row.over_onnxruntime),
                number(row.openvino_ms),
                _times(row.over_openvino),
            ]
            for row in rows
        ],
        frozenset({0, 1}),
    )


def _summary(rows: Sequence[Row]) -> str:
    """How many work, how many are as fast as the faster peer, and the means."""
    done = [row for row in rows if not row.failed]
    ratios = [row.over_faster for row in done if row.over_faster is not None]
    text = f"{len(done)} of {len(rows)} models were tuned, verified and measured"
    if ratios:
        text += (
            f"; {sum(ratio >= 1 for ratio in ratios)} of {len(ratios)} are no slower than the "
            f"faster peer that ran them, {geometric_mean(ratios):.2f} times as fast as it on "
            "geometric mean"
        )
    for title, known in (
        ("onnxruntime", [row.over_onnxruntime for row in done if row.over_onnxruntime]),
        ("OpenVINO", [row.over_openvino for row in done if row.over_openvino]),
    ):
        if known:
            text += f"; {geometric_mean(known):.2f} times as fast as {title} ({len(known)} models)"
    return f"{text}."


def _conditions(rows: Sequence[Row]) -> list[str]:
    """Each set of conditions once; where there are several, with its models."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        if row.conditions:
            groups.setdefault(row.conditions, []).append(row.name)
    if len(groups) == 1:
        return [f"{text}\n" for text in groups]
    return [f"- {', '.join(names)}: {text}\n" for text, names in groups.items()]


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{ratio:.2f}"
