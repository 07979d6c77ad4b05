"""Grouped-query attention and quantised attention, compared with onnxruntime."""

import numpy as np
import pytest

from tests.expanded_models import assert_node, normal

HEADS, SHARED, SIZE = 4, 2, 16


@pytest.mark.parametrize("rotates", [0, 1])
@pytest.mark.parametrize(("steps", "before"), [(5, 0), (1, 6), (3, 4)])
def test_heads_that_share_keys_attend_to_those_before(rotates, steps, before):
    end = steps + before
    past = [normal(1, SHARED, before, SIZE) for _ in range(2)] if before else [None, None]
    tables = [normal(16, SIZE // 2), normal(17, SIZE // 2)[:16]] if rotates else [None, None]
    inputs = [
        normal(1, steps, HEADS * SIZE),
        normal(1, steps, SHARED * SIZE),
        normal(1, steps, SHARED * SIZE + 1)[..., :-1],
        *past,
        np.array([end - 1], np.int32),
        np.array(end, np.int32),
        *tables,
    ]
    assert_node(
        "GroupQueryAttention",
        inputs,
        ("out", "keys", "values"),
        constants=(6, 7, 8) if rotates else (6,),
        num_heads=HEADS,
        kv_num_heads=SHARED,
        do_rotary=rotates,
    )


def test_quantised_attention_equals_that_of_dequantised_inputs():
    generator = np.random.default_rng(0)
    inputs = [
        generator.integers(0, 255, (1, 3, 8)).astype(np.uint8),
        generator.integers(-100, 100, (8, 24)).astype(np.int8),
        normal(24),
        np.float32(0.02),
        np.float32(0.01),
        None,
        np.uint8(120),
        np.int8(0),
    ]
    assert_node("QAttention", inputs, constants=(1, 2, 3, 4, 6, 7), num_heads=2)
