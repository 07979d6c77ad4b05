"""Names of the blocks of Winograd's transforms, by which tasks are known."""

from __future__ import annotations

INPUT_ROWS, INPUT = "winograd_input_rows", "winograd_input"


OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"


PRODUCTS = "winograd_matmul"


# The axis of the data between them that both transforms split among threads.
TILES = 1
