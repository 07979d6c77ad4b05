import numpy as np
import pytest

from fewtune.errors import InputError, VerificationError
from fewtune.model.converters import recurrent
from fewtune.model.converters.recurrent import CELLS, Recurrence
from fewtune.model.lower import lower_checked
from fewtune.onnx_graph import simplify
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.onnx_graph.operators.expand import expand
from fewtune.onnx_graph.operators.recurrent import UNROLLED
from fewtune.options import ImportOptions
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import set_threads
from fewtune.task.analysis import call_counts
from tests.made.layers import layer, quantized_layer
from tests.made.outputs import run_onnxruntime
from tests.made.recurrent import TARGET, kernels

TRAITS = CpuTraits.of(TARGET)
GRU = {"linear_before_reset": 1}


def shaped(kind, **given):
    """A layer whose values have known shapes, and its feeds."""
    model, feeds = layer(kind, **given)
    return simplify.with_shapes(model), feeds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("LSTM", {"direction": "reverse", "bias": False, "states": False, "batch": 1}),
        ("LSTM", {"direction": "bidirectional", "hidden": 16, "lengths": [5, 5, 5]}),
        ("GRU", {"direction": "bidirectional", "hidden": 17, "batch": 1, "states": False, **GRU}),
        ("RNN", {"direction": "bidirectional", "outputs": ["", "last"]}),
    ],
)
def test_one_kernel_computes_all_steps(kind, given):
    counts = kernels(*shaped(kind, **given))
    assert sum(count for name, count in counts.items() if "recurrence" in name) == 1
    assert sum(count for name, count in counts.items() if "matmul" in name) == 1


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_after_an_infinite_input_later_states_are_finite(kind):
    model, feeds = shaped(kind)
    feeds["x"][1, 0, 2] = np.inf
    kernels(model, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "given", "direction", "hidden"),
    [
        ("LSTM", {}, "bidirectional", 312),
        ("GRU", GRU, "reverse", 216),
        ("RNN", {}, "reverse", 376),
    ],
)
def test_threads_share_a_direction(kind, given, direction, hidden):
    """An odd number of panels, and two threads that wait for each other at every step."""
    directions = 2 if direction == "bidirectional" else 1
    sizes = Recurrence(kind, 12, 2, directions, hidden)
    assert sizes.workers(2) == 2
    assert hidden // TRAITS.lanes("float32") % 2 == 1
    set_threads(2)
    kernels(*shaped(kind, steps=12, direction=direction, hidden=hidden, batch=2, **given))


@pytest.mark.slow
def test_a_wrong_kernel_is_left_out_by_name(monkeypatch):
    model, feeds = layer("LSTM", batch=1, steps=2)
    bound = bind_shapes(simplify.with_shapes(model), {}, {})
    wanted = run_onnxruntime(model, feeds, 1)
    cell, _ = CELLS["LSTM"]
    monkeypatch.setitem(CELLS, "LSTM", (cell, lambda *given: given[-1]))

    def check(compiled):
        ours = compiled.outputs([feeds["x"]])
        if any(np.abs(a - b).max() > 1e-4 for a, b in zip(ours, wanted, strict=True)):
            raise VerificationError("a state is its cell")

    made = lower_checked(bound, TARGET, ImportOptions(), check)
    assert made.left_out == {simplify.RECURRENT_LAYERS: "a state is its cell"}
    assert "recurrence" not in call_counts(made.module)


@pytest.mark.parametrize(
    ("hidden", "directions", "threads", "workers"),
    [(32, 2, 2, 1), (128, 2, 2, 1), (512, 2, 2, 2), (400, 1, 2, 2), (512, 1, 1, 1), (512, 2, 8, 8)],
)
def test_threads_share_a_direction_whose_weights_one_core_cannot_keep(
    hidden, directions, threads, workers
):
    assert Recurrence("LSTM", 20, 1, directions, hidden).workers(threads) == workers


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        {"without": "pbhc", "hidden": 16, "direction": "forward", "by_column": False},
        {"without": "p", "hidden": 17, "batch": 3},
    ],
)
def test_one_kernel_quantizes_and_multiplies_at_all_steps(given):
    counts = kernels(*quantized_layer(**given))
    assert sum(count for name, count in counts.items() if "recurrence" in name) == 1
    assert sum(count for name, count in counts.items() if "matmul" in name) == 1


@pytest.mark.parametrize("given", [{}, {"without": "p", "zeros": (0, 7)}])
def test_a_quantized_form_without_a_kernel_is_refused_by_name(given):
    with pytest.raises(InputError, match="DynamicQuantizeLSTM node .* is of a form"):
        expand(quantized_layer(**given)[0], UNROLLED)


@pytest.mark.slow
def test_threads_share_a_quantized_direction(monkeypatch):
    monkeypatch.setattr(recurrent, "_WAIT_BYTES", -(10**9))
    set_threads(2)
    kernels(*quantized_layer(hidden=24, steps=40, without="p"))


def test_bytes_stay_in_a_core_s_cache_where_floats_do_not():
    sizes = Recurrence("LSTM", 20, 1, 2, 384)
    assert sizes.workers(2) == 2
    assert sizes._replace(is_quantized=True).workers(2) == 1
