"""The similarity matrix as a table and as a picture, its tasks ordered by cluster."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fewtune.artifacts import Selection
from fewtune.similarity.similarity import SimilarityMatrix
from fewtune.util.files import write_bytes, write_text

CSV = "similarity.csv"
PNG = "similarity.png"
# Names are legible up to about these many tasks.
_MOST_NAMED = 80


def write_similarity(selection: Selection, matrix: SimilarityMatrix, directory: Path) -> None:
    """Write ``similarity.csv`` and ``similarity.png``; equal input gives equal bytes.

    Parameters
    ----------
    selection : Selection
        Gives the order of the tasks, and the borders of the clusters in the picture.
    matrix : SimilarityMatrix
        Similarities of all tasks of the clusters.
    directory : Path
        The folder to write into.
    """
    ordered = matrix.ordered([name for each in selection.clusters for name in each.members])
    write_text(directory / CSV, similarity_csv(ordered))
    write_bytes(directory / PNG, similarity_png(selection, ordered))


def similarity_csv(matrix: SimilarityMatrix) -> str:
    """A row and a column for each task, with the names in the first row and column."""
    rows = zip(matrix.names, matrix.values, strict=True)
    lines = [("task", *matrix.names), *((name, *map("{:.4f}".format, row)) for name, row in rows)]
    return "".join(",".join(line) + "\n" for line in lines)


def similarity_png(selection: Selection, matrix: SimilarityMatrix) -> bytes:
    """A heat map with a frame around each cluster; its representative is marked with a star."""
    count, chosen = len(matrix.names), set(selection.representatives)
    side = 3.0 + 0.24 * min(max(count, 8), _MOST_NAMED)
    figure = Figure(figsize=(side + 1.0, side), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{selection.model} ({selection.strategy}): similarity of tuning spaces")
    # The values of no task are a matrix without elements, of which there is no picture.
    image = axes.imshow(matrix.values if count else [[0.0]], vmin=0.0, vmax=1.0, cmap="viridis")
    figure.colorbar(image, ax=axes, label="similarity rate", shrink=0.8)
    # As long as they do not run into each other.
    names = matrix.names if count <= _MOST_NAMED else ()
    labels = [f"* {name}" if name in chosen else name for name in names]
    axes.set_xticks(range(len(labels)), labels, rotation=90, fontsize=6, parse_math=False)
    axes.set_yticks(range(len(labels)), labels, fontsize=6, parse_math=False)
    start = 0
    for cluster in selection.clusters:
        size = len(cluster.members)
        corner = (start - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="red", linewidth=1.5))
        start += size
    stream = io.BytesIO()
    # The library's version, which it would sign with, is no part of the result.
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
