"""onnxruntime's LSTM of 8-bit weights as one kernel."""

import numpy as np
import pytest

from fewtune.model.converters import recurrent_kernel
from fewtune.model.converters.recurrent_kernel import Recurrence
from fewtune.runtime.tvm import set_threads
from tests.made.layers import quantized_layer
from tests.made.recurrent import kernels


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"without": "pbhc", "hidden": 16, "direction": "forward", "by_column": False},
        {"without": "p", "hidden": 3, "kind": np.uint8, "zeros": (128, 128), "by_column": False},
        {"without": "p", "hidden": 17, "kind": np.uint8, "zeros": (128, 7), "steps": 40},
        {"without": "p", "hidden": 17, "batch": 3},
    ],
)
def test_one_kernel_quantizes_and_multiplies_at_all_steps(given):
    counts = kernels(*quantized_layer(**given))
    assert sum(count for name, count in counts.items() if "recurrence" in name) == 1
    assert sum(count for name, count in counts.items() if "matmul" in name) == 1


@pytest.mark.slow
def test_a_quantized_layer_of_a_larger_batch_is_unrolled():
    counts = kernels(*quantized_layer(steps=3, batch=5, without="p"))
    assert not any("recurrence" in name for name in counts)


@pytest.mark.slow
def test_threads_share_a_quantized_direction(monkeypatch):
    monkeypatch.setattr(recurrent_kernel, "_WAIT_BYTES", -(10**9))
    set_threads(2)
    kernels(*quantized_layer(hidden=24, steps=40, without="p"))


def test_bytes_stay_in_a_core_s_cache_where_floats_do_not():
    sizes = Recurrence("LSTM", 20, 1, 2, 384)
    assert sizes.workers(2) == 2
    assert sizes._replace(weight_dtype="int8").workers(2) == 1
