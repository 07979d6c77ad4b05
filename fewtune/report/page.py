"""One model's results as an HTML file that needs no network: pictures, tables, conditions."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fewtune.artifacts import Curve
from fewtune.report import tables
from fewtune.report.tables import Result, steps_table
from fewtune.util.table import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  color: #1a1a1a; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-size: 13px; margin: .8rem 0 }
div { overflow-x: auto }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: right }
th { vertical-align: bottom } .left { text-align: left }
svg, img { max-width: 100%; height: auto }
.warning { background: #fff3cd; border-left: 4px solid #d39e00; padding: .5rem .8rem }
"""
# A tenfold range of estimates is drawn on a logarithmic scale.
_WIDE_RANGE = 10.0
_PEERS = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Page:
    """What a page shows of one model.

    Attributes
    ----------
    results : sequence of Result
        A result for each strategy.
    curves : mapping of Curve
        By strategy: estimated latency over tuning time.
    overlap : bytes or None
        The picture of the tuning spaces' overlap, as PNG.
    earlier : Table or None
        Earlier results.
    """

    results: Sequence[Result]
    curves: Mapping[str, Curve] = field(default_factory=dict)
    overlap: bytes | None = None
    earlier: Table | None = None

    def html(self) -> str:
        """The page."""
        model = escape(self.results[0].model)
        comparisons = tables.distinct_comparisons(self.results)
        parts = [f"<h1>{model}</h1>"]
        parts += [
            f'<p class="warning">{_text(it)}</p>' for it in tables.disturbed_lines(self.results)
        ]
        parts.append(_table(tables.results_table(self.results)))
        found = [
            (f"{name} ({each.strategy})", stats)
            for each in self.results
            for name, stats in each.benchmark.variants.items()
        ]
        parts += ["<h2>Latency</h2>", _table(tables.latency_table(found))]
        if any(curve.points for curve in self.curves.values()):
            parts += ["<h2>Latency against tuning time</h2>", self._curve()]
        if comparisons:
            parts.append("<h2>Selective against full tuning</h2>")
            parts.append(_table(tables.comparison_table(comparisons, wide=False)))
        for each in self.results:
            parts += _of_result(each)
        if self.overlap:
            png = base64.b64encode(self.overlap).decode()
            parts.append("<h2>Overlap of the tuning spaces</h2>")
            parts.append(f'<img alt="" src="data:image/png;base64,{png}">')
        if self.earlier:
            parts += ["<h2>Earlier results</h2>", _table(self.earlier)]
        parts.append("<h2>Conditions</h2>")
        parts += [f"<p>{_text(line)}</p>" for line in tables.results_conditions(self.results)]
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{model}</title><style>{_STYLE}</style></head>\n"
            f"<body>{chr(10).join(parts)}</body></html>\n"
        )

    def _curve(self) -> str:
        """The estimate after each batch, beside what was measured in the end."""
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator

        figure = Figure(figsize=(8.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        latencies_ms = []
        for place, (strategy, curve) in enumerate(self.curves.items()):
            found = [point.estimated_latency_ms for point in curve.points]
            latencies_ms += found
            seconds = [point.elapsed_s for point in curve.points]
            # One that measured nothing has no curve.
            label = f"{strategy}, estimate" if found else None
            axes.step(seconds, found, where="post", color=f"C{place}", label=label)
        for place, (name, stats) in enumerate(self.results[0].benchmark.variants.items()):
            if name in (*_PEERS, "tuned"):
                latencies_ms.append(stats.median_ms)
                style = "-" if name == "tuned" else "--"
                axes.axhline(stats.median_ms, color=f"C{place + 4}", ls=style, lw=1, label=name)
        if max(latencies_ms) > _WIDE_RANGE * min(latencies_ms):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        axes.set_xlabel("tuning time (s)")
        axes.set_ylabel("latency (ms)")
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        stream = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curve"}):
            figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        text = stream.getvalue()
        return text[text.index("<svg") :]


def _of_result(result: Result) -> list[str]:
    """The kernels of one result, the cost of its steps, and what went another way."""
    report = result.benchmark
    name = escape(result.strategy)
    parts = [f"<h2>Kernels, {name}</h2>", _table(tables.kernel_table(report))]
    if report.steps:
        parts += [f"<h2>What tuning time went to, {name}</h2>", _table(steps_table(report.steps))]
    if report.remarks:
        lines = "".join(f"<li>{_text(line)}</li>" for line in report.remarks)
        parts.append(f"<h2>Remarks, {name}</h2><ul>{lines}</ul>")
    return parts


def _text(line: str) -> str:
    return escape(line, quote=False)


def _table(table: Table) -> str:
    rows = []
    for tag, line in [("th", table.headings), *(("td", row) for row in table.rows)]:
        cells = (
            f"<{tag}{' class=left' if column in table.left else ''}>{_text(cell)}</{tag}>"
            for column, cell in enumerate(line)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div><table>{''.join(rows)}</table></div>"
