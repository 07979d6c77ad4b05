"""A page of the fleet's results over time: markdown and a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.util.files import write_bytes, write_text
from fewtune.util.table import MISSING, Table, number
from pipelines.records.watch import Watched, latency_of

PAGE, PICTURE = "fleet.md", "fleet.png"
_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = 20
_COLUMNS = 3


def fleet_markdown(watched: Sequence[Watched]) -> str:
    """A table for each machine: the latest value of each result, earlier values, a small plot."""
    headings = [
        "model",
        "strategy",
        "results",
        "first ms",
        "best ms",
        "latest ms",
        "change %",
        "noise %",
        "x over onnxruntime",
        "measured",
        f"last {_SHOWN} (low is fast)",
    ]
    parts = []
    for machine in dict.fromkeys(each.machine for each in watched):
        rows = []
        for each in (each for each in watched if each.machine == machine):
            history = _history(each)
            change = each.change
            rows.append(
                [
                    each.result.model,
                    each.result.strategy,
                    str(len(history)),
                    number(history[0]),
                    number(min(history)),
                    number(history[-1]),
                    MISSING if change is None else f"{100 * (change.ratio - 1):+.1f}",
                    MISSING if change is None else f"{100 * change.noise:.1f}",
                    number(each.runs[0].data.metrics.get("times_onnxruntime")),
                    each.runs[0].data.tags.get("measured", MISSING),
                    _line(history[-_SHOWN:]),
                ]
            )
        table = Table(headings, rows, left=frozenset({0, 1, len(headings) - 1}))
        slower = "".join(f"- {each.line()}\n" for each in watched if each.line())
        listed = f"\nSlower than before:\n\n{slower}" if slower else ""
        parts.append(f"## {machine}\n\n{table.markdown()}{listed}")
    return "# Latency over time\n\n" + "\n".join(parts)


def fleet_picture(watched: Sequence[Watched]) -> bytes:
    """The same as a PNG: a panel for each model, latency over time with its spread."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(each.result.model for each in watched))
    columns = min(_COLUMNS, len(models))
    rows = math.ceil(len(models) / columns)
    figure = Figure(figsize=(5 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    several = len({each.machine for each in watched}) > 1
    for panel, model in zip(panels, models, strict=False):
        for each in (each for each in watched if each.result.model == model):
            runs = list(reversed(each.runs))
            moments = [_moment(run.info.end_time) for run in runs]
            latencies = [latency_of(run) for run in runs]
            medians = [latency.median_ms for latency in latencies]
            spread = [
                [latency.median_ms - latency.p10_ms for latency in latencies],
                [latency.p90_ms - latency.median_ms for latency in latencies],
            ]
            label = each.result.strategy + (f", {each.machine}" if several else "")
            panel.errorbar(moments, medians, spread, marker="o", capsize=3, label=label)
        panel.set_title(model)
        panel.set_ylabel("latency (ms)")
        panel.set_ylim(bottom=0)
        locator = AutoDateLocator()
        panel.xaxis.set_major_locator(locator)
        panel.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        panel.legend(fontsize="small")
    for panel in panels[len(models) :]:
        panel.set_axis_off()
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100, metadata={"Software": None})
    return stream.getvalue()


def write_page(watched: Sequence[Watched], folder: Path) -> list[Path]:
    """Write both to ``folder``; return their paths."""
    write_text(folder / PAGE, f"{fleet_markdown(watched)}\n![Latency over time]({PICTURE})\n")
    write_bytes(folder / PICTURE, fleet_picture(watched))
    return [folder / PAGE, folder / PICTURE]


def _history(each: Watched) -> list[float]:
    """Latencies in milliseconds, the latest last."""
    return [latency_of(run).median_ms for run in reversed(each.runs)]


def _line(values: Sequence[float]) -> str:
    """A text plot: the height of a bar for each value."""
    least, most = min(values), max(values)
    if most == least:
        return _BARS[0] * len(values)
    return "".join(
        _BARS[round((value - least) / (most - least) * (len(_BARS) - 1))] for value in values
    )


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
