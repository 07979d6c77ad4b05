"""A page of the fleet's results over time: markdown and a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fewtune.pipelines.records.watch import Watched, watch_table
from fewtune.util.files import write_bytes, write_text

PAGE, PICTURE = "fleet.md", "fleet.png"


def fleet_markdown(watched: Sequence[Watched]) -> str:
    """The table of all results, and what became slower."""
    slower = "".join(f"- {each.line()}\n" for each in watched if each.line())
    listed = f"\nSlower than before:\n\n{slower}" if slower else ""
    return f"# Latency over time\n\n{watch_table(watched).markdown()}{listed}"


def fleet_picture(watched: Sequence[Watched]) -> bytes:
    """A PNG: a panel for each model, latency over time with its spread."""
    from matplotlib.dates import ConciseDateFormatter
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(each.result.model for each in watched))
    figure = Figure(figsize=(8, 3.2 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), squeeze=False).flatten()
    for panel, model in zip(panels, models, strict=True):
        for each in (each for each in watched if each.result.model == model):
            found = each.latencies[::-1]
            ended = [run.info.end_time / 1000 for run in reversed(each.runs)]
            panel.errorbar(
                [datetime.fromtimestamp(moment, UTC) for moment in ended],
                [it.median_ms for it in found],
                [
                    [it.median_ms - it.p10_ms for it in found],
                    [it.p90_ms - it.median_ms for it in found],
                ],
                marker="o",
                capsize=3,
                label=f"{each.result.strategy}, {each.machine}",
            )
        panel.set_title(model)
        panel.set_ylabel("latency (ms)")
        panel.set_ylim(bottom=0)
        dates = panel.xaxis
        dates.set_major_formatter(ConciseDateFormatter(dates.get_major_locator()))
        panel.legend(fontsize="small")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100, metadata={"Software": None})
    return stream.getvalue()


def write_page(watched: Sequence[Watched], folder: Path) -> list[Path]:
    """Write both to ``folder``; return their paths."""
    write_text(folder / PAGE, f"{fleet_markdown(watched)}\n![Latency over time]({PICTURE})\n")
    write_bytes(folder / PICTURE, fleet_picture(watched))
    return [folder / PAGE, folder / PICTURE]
