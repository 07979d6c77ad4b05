"""Sequences of static length, compared with onnxruntime."""

import numpy as np
import pytest

from fewtune.errors import InputError
from tests.expanded_models import assert_same, expanded
from tests.made import onnx_text

DATA = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
SPLIT = "parts = SplitToSequence <axis = 0, keepdims = 0> (x)"
JOIN = "y = ConcatFromSequence <axis = 1, new_axis = 1> (parts)"


def model_of(nodes, **constants):
    return onnx_text.model_of(f"(float[3,4] x) => (float[] y) {{{nodes}}}", **constants)


def test_a_tensor_is_split_and_its_parts_joined_along_a_new_axis():
    assert_same(model_of(SPLIT + JOIN), DATA)


def test_parts_are_inserted_erased_and_read_at_constant_positions():
    nodes = """
        s = SplitToSequence <axis = 1> (x, size)
        part = SequenceAt (s, last)
        longer = SequenceInsert (s, part, first)
        parts = SequenceErase (longer)
        y = ConcatFromSequence <axis = 1> (parts)"""
    assert_same(model_of(nodes, size=2, last=-1, first=0), DATA)


def test_a_loop_that_appends_to_a_sequence_is_unrolled():
    nodes = """
        none = SequenceEmpty ()
        parts = Loop (trips, , none) <body = body
            (int64 step, bool going, seq(float[]) before) => (bool still, seq(float[]) after) {
                row = Gather (x, step)
                after = SequenceInsert (before, row)
                still = Identity (going)
            }>"""
    assert_same(model_of(nodes + JOIN, trips=3), DATA)


def test_a_position_beyond_a_sequence_is_refused_by_node():
    with pytest.raises(InputError, match="SequenceAt node 'reads_beyond' reads place 7"):
        expanded(model_of(f"{SPLIT} [reads_beyond] y = SequenceAt (parts, place)", place=7))
