"""Padding written out, compared with onnxruntime."""

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
