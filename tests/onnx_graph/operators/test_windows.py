"""Padding and Fourier transforms written out, compared with onnxruntime."""

import numpy as np
import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_node, normal


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_LOWER", "SAME_UPPER", "VALID"])
def test_implied_padding_of_a_pooling_is_written_out(operator, mode):
    window = {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": mode}
    (pool,) = assert_node(operator, [normal(1, 3, 9, 8)], domain="", **window).graph.node
    assert "auto_pad" not in {attribute.name for attribute in pool.attribute}


def test_a_dilated_window_is_padded_as_onnxruntime_does():
    window = {"kernel_shape": [3], "strides": [2], "dilations": [2], "auto_pad": "SAME_LOWER"}
    assert_node("MaxPool", [normal(1, 3, 10)], domain="", **window)


def test_indices_are_refused_by_name():
    with pytest.raises(InputError, match="MaxPool node 'node' returns indices"):
        assert_node("MaxPool", [normal(1, 3, 9)], ["y", "places"], "", kernel_shape=[2])


def test_a_window_behind_the_end_is_refused_by_name():
    inputs, given = [normal(1, 3, 9, 12)], {"strides": [2, 2], "ceil_mode": 1}
    assert_node("MaxPool", inputs, domain="", kernel_shape=[3, 3], **given)
    with pytest.raises(InputError, match="MaxPool node 'node' counts a window"):
        assert_node("MaxPool", inputs, domain="", kernel_shape=[1, 1], **given)


@pytest.mark.parametrize("sides", [0, 1])
@pytest.mark.parametrize("given", [("window",), ("length",), ("window", "length")])
def test_a_short_time_fourier_transform_is_a_convolution(given, sides):
    window = np.hanning(12).astype("float32") if "window" in given else None
    length = np.array(12) if "length" in given else None
    inputs = [normal(2, 50, 1), np.array(5), window, length]
    constants = [place for place in (1, 2, 3) if inputs[place] is not None]
    made = assert_node("STFT", inputs, domain="", constants=constants, onesided=sides)
    assert [node.op_type for node in made.graph.node if node.op_type == "Conv"] == ["Conv"]


@pytest.mark.parametrize(("last", "constants"), [(2, [1, 3]), (1, [1])])
def test_a_transform_of_complex_numbers_or_unknown_length_is_refused_by_name(last, constants):
    inputs = [normal(2, 50, last), np.array(5), None, np.array(12)]
    with pytest.raises(InputError, match="STFT node 'node' reads complex numbers, or its step"):
        assert_node("STFT", inputs, domain="", constants=constants, onesided=0)
