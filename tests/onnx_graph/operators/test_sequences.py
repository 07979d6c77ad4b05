"""Sequences of static length, which TVM's importer reads, compared with onnxruntime."""

import numpy as np
import pytest

from fewtune.errors import InputError
from tests.made import onnx_text
from tests.made.compiled import outputs
from tests.made.outputs import run_onnxruntime

DATA = np.arange(12, dtype=np.float32).reshape(3, 4)
JOIN = "y = ConcatFromSequence <axis = 1, new_axis = 1> (parts)"


def model_of(nodes, **constants):
    return onnx_text.model_of(f"(float[3,4] x) => (float[] y) {{{nodes}}}", **constants)


def check(model):
    (made,), (wanted,) = *outputs(model, [DATA]), run_onnxruntime(model, {"x": DATA}, 1)
    np.testing.assert_array_equal(made, wanted)


def test_a_tensor_is_split_and_its_parts_joined_along_a_new_axis():
    check(model_of("parts = SplitToSequence <axis = 0, keepdims = 0> (x)" + JOIN))


@pytest.mark.parametrize("size", [2, [1, 3]])
def test_parts_are_read_inserted_and_erased_at_constant_positions(size):
    nodes = """
        s = SplitToSequence <axis = 1> (x, size)
        last = SequenceAt (s, one)
        first = SequenceAt (s, zero)
        both = SequenceConstruct (last, first)
        longer = SequenceInsert (both, last, zero)
        parts = SequenceErase (longer, one)
        y = ConcatFromSequence <axis = 1> (parts)"""
    check(model_of(nodes, size=size, one=1, zero=0))


def test_a_loop_that_appends_to_a_sequence_is_unrolled():
    nodes = """
        none = SequenceEmpty ()
        parts = Loop (trips, , none) <body = body
            (int64 step, bool going, seq(float[]) before) => (bool still, seq(float[]) after) {
                row = Gather (x, step)
                after = SequenceInsert (before, row)
                still = Identity (going)
            }>"""
    check(model_of(nodes + JOIN, trips=3))


def test_a_position_that_is_not_there_is_refused_by_node():
    nodes = "parts = SplitToSequence (x) [reads_beyond] y = SequenceAt (parts, place)"
    with pytest.raises(InputError, match="SequenceAt .node 'reads_beyond'"):
        outputs(model_of(nodes, place=-1), [DATA])
