"""Pictures of results."""

from __future__ import annotations

import io
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def drawn(panels: int, draw: Callable[[list[Axes]], None]) -> bytes:
    """PNG of panels side by side, with a legend in the first; ``draw`` fills their axes."""
    figure = Figure(figsize=(8 * panels, 5))
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
    draw(axes)
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(fontsize=7)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()
