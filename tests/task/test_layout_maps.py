"""Layout maps of weights: read from a schedule, applied, and refused if they lose weights."""

import numpy as np
import pytest

from fewtune.runtime.tvm import tvm
from fewtune.task.weight_layout import LayoutError, addresses_of, layout_blocks


def schedule(store: str, shape: str) -> tvm.IRModule:
    """A kernel that starts with a layout rewrite of a 6 x 8 weight."""
    return tvm.script.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(weight: T.Buffer((6, 8), "float32"), out: T.Buffer((6, 8), "float32")):
        T.func_attr({{"layout_free_buffers": [0], "tirx.noalias": True}})
        with T.sblock("root"):
            moved = T.sblock_alloc_buffer(({shape}), "float32")
            for i, j in T.grid(6, 8):
                with T.sblock("moved"):
                    a, b = T.axis.remap("SS", [i, j])
                    T.reads(weight[a, b])
                    T.writes(moved[{store}])
                    T.sblock_attr({{"meta_schedule.layout_rewrite_preproc": True}})
                    moved[{store}] = weight[a, b]
            for i, j in T.grid(6, 8):
                with T.sblock("out"):
                    a, b = T.axis.remap("SS", [i, j])
                    out[a, b] = 2.0 * moved[{store}]
""")


WEIGHTS = np.arange(48, dtype="float32").reshape(6, 8)


@pytest.mark.parametrize(
    ("store", "shape", "expected"),
    [
        ("b, a", "8, 6", WEIGHTS.T),
        ("a // 2, b, a % 2", "3, 8, 2", WEIGHTS.reshape(3, 2, 8).transpose(0, 2, 1)),
        ("b // 4, a, b % 4", "2, 6, 4", WEIGHTS.reshape(6, 2, 4).transpose(1, 0, 2)),
        ("(a * 8 + b) % 48", "48,", WEIGHTS.reshape(48)),
        ("(a * 8 + b + 5) % 48", "48,", np.roll(WEIGHTS.reshape(48), 5)),
    ],
)
def test_weights_get_the_layout_of_the_schedule(store, shape, expected):
    (block,) = layout_blocks(schedule(store, shape)).values()
    made = np.empty(48, "float32")
    made[addresses_of(block, 48)] = WEIGHTS.reshape(-1)
    np.testing.assert_array_equal(made.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("store", "shape", "said"),
    [
        ("b", "8,", "room for 8 of 48 weights"),
        ("a // 2, b, a % 2 * 0", "3, 8, 2", "several weights in one place"),
        ("(a * 8 + b) * 2 % 48", "48,", "several weights in one place"),
    ],
)
def test_a_layout_that_loses_weights_is_refused(store, shape, said):
    (block,) = layout_blocks(schedule(store, shape)).values()
    with pytest.raises(LayoutError, match=said):
        addresses_of(block, 48)


def test_a_kernel_without_layout_rewrite_has_no_map():
    plain = schedule("a, b", "6, 8").script().replace("layout_rewrite_preproc", "another")
    assert layout_blocks(tvm.script.from_source(plain)) == {}
