"""onnxruntime's LSTM with 8-bit weights, expanded and compared with onnxruntime."""

import numpy as np
import pytest

from tests.expanded_models import assert_same
from tests.made.layers import quantized_layer


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("by_column", [False, True])
def test_a_layer_quantises_the_input_of_each_product(kind, by_column):
    zeros = (0, 0) if kind is np.int8 else (128, 128)
    assert_same(*quantized_layer(kind, zeros, by_column=by_column, without="p", steps=5))
