"""Recurrent layers lowered to kernels, and compared with onnxruntime."""

from collections import Counter

import numpy as np
from onnx import ModelProto

from fewtune.model.lower import lower
from fewtune.onnx_graph import simplify
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.external_data import light
from fewtune.runtime.tvm import tvm
from fewtune.task.analysis import call_counts
from tests.made.compiled import compiled
from tests.made.outputs import run_onnxruntime

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})


def kernels(model: ModelProto, feeds: dict[str, np.ndarray]) -> Counter[str]:
    """Lower a model with its recurrent layers, check its outputs, and count its kernels."""
    bound = bind_shapes(model, {}, {})
    lowered = lower(simplify.with_light_layers(light(bound)), TARGET, "NHWC")
    ours = compiled(lowered, TARGET).outputs([feeds["x"]])
    for actual, wanted in zip(ours, run_onnxruntime(model, feeds, 1), strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-5)
    return call_counts(lowered)
