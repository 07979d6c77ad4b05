"""Imported non-maximum suppression: padded, and it selects what onnxruntime selects."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fewtune.model.import_options import ImportOptions
from fewtune.model.lower_checked import lower_checked
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.operators.suppression import padding_notes
from fewtune.runtime.target import resolve_target
from fewtune.verify.session import run_onnxruntime

BATCH, CLASSES, BOXES, MOST = 2, 3, 20, 4


def model_of(centered, threshold):
    bounds = {"most": np.array([MOST]), "overlap": np.array([0.3], np.float32)}
    if threshold is not None:
        bounds["least"] = np.array([threshold], np.float32)
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", *bounds], ["y"], "nms", center_point_box=centered
    )
    graph = helper.make_graph(
        [node],
        "detector",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [BATCH, BOXES, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [BATCH, CLASSES, BOXES]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [None, 3])],
        [numpy_helper.from_array(array, name) for name, array in bounds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("centered", "threshold"), [(0, None), (1, 0.9)])
def test_the_boxes_selected_are_onnxruntimes_and_rows_of_minus_one_follow(centered, threshold):
    generator = np.random.default_rng(0)
    feeds = {
        "boxes": generator.uniform(0, 1, (BATCH, BOXES, 4)).astype(np.float32),
        "scores": generator.uniform(0, 1, (BATCH, CLASSES, BOXES)).astype(np.float32),
    }
    model = model_of(centered, threshold)
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
