"""Parts of tensors, compared with onnxruntime."""

import numpy as np
import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_node, normal


def test_a_split_with_an_empty_part_is_refused_by_name():
    with pytest.raises(InputError, match="Split node 'node' has a part without elements"):
        assert_node("Split", [normal(2, 4), np.array([4, 0])], ("a", "b"), "", (1,), axis=1)


def test_empty_parts_of_a_concatenation_are_left_out():
    parts = [normal(2, 3), np.zeros((2, 0), np.float32), normal(2, 1)]
    model = assert_node("Concat", parts, domain="", constants=(1,), axis=1)
    (node,) = model.graph.node
    assert len(node.input) == 2
