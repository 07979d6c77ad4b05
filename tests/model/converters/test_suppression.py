"""Imported non-maximum suppression: padded, and it selects what onnxruntime selects."""

import numpy as np
import pytest

from fewtune.model.lower import lower_checked
from fewtune.onnx_graph.bind import bind_shapes, padding_notes
from fewtune.options import ImportOptions
from fewtune.runtime.target import resolve_target
from tests.made.onnx_text import model_of
from tests.made.outputs import run_onnxruntime

BATCH, CLASSES, BOXES, MOST = 2, 3, 20, 4


def suppressing(threshold):
    least = "" if threshold is None else ", least"
    bounds = {} if threshold is None else {"least": np.array([threshold], np.float32)}
    return model_of(
        f"""(float[{BATCH},{BOXES},4] boxes, float[{BATCH},{CLASSES},{BOXES}] scores)
        => (int64["rows",3] y) {{
            [nms] y = NonMaxSuppression (boxes, scores, most, overlap{least})
        }}""",
        most=[MOST],
        overlap=np.array([0.3], np.float32),
        **bounds,
    )


@pytest.mark.parametrize("threshold", [None, 0.9])
def test_the_boxes_selected_are_onnxruntimes_and_rows_of_minus_one_follow(threshold):
    generator = np.random.default_rng(0)
    feeds = {
        "boxes": generator.uniform(0, 1, (BATCH, BOXES, 4)).astype(np.float32),
        "scores": generator.uniform(0, 1, (BATCH, CLASSES, BOXES)).astype(np.float32),
    }
    model = suppressing(threshold)
    selected = run_onnxruntime(model, feeds, 1)[0]
    bound = bind_shapes(model, {}, {})
    made = []
    lower_checked(
        bound,
        resolve_target("auto", 1),
        ImportOptions(),
        lambda compiled: made.append(compiled.outputs(list(feeds.values()))[0]),
    )
    rows = BATCH * CLASSES * MOST
    filling = np.full((rows - len(selected), 3), -1)
    np.testing.assert_array_equal(made[-1], np.concatenate([selected, filling]))
    (note,) = padding_notes(bound)
    assert f"NonMaxSuppression node 'nms': its output is padded to {rows} rows" in note
