"""A GPU's limits, asked of decisions before they are applied."""

from __future__ import annotations

from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.gpu_limits import GpuLimits

GPU = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 256, "thread_warp_size": 32}
)


def test_limits_are_those_of_the_target() -> None:
    assert GpuLimits.of(GPU) == GpuLimits(32, 256)


def test_threads_of_a_block_are_counted_over_all_axes() -> None:
    limits, reduction = GpuLimits.of(GPU), (4, 8, 2)
    assert limits.allow([(2, 1, 16, 1, 2), (1, 2, 8, 1, 1), reduction, 3])
    # 512 threads; 16, less than a warp; 16 virtual ones.
    assert not limits.allow([(2, 1, 32, 1, 2), (1, 2, 16, 1, 1), reduction])
    assert not limits.allow([(2, 1, 4, 1, 2), (1, 2, 4, 1, 1), reduction])
    assert not limits.allow([(2, 4, 16, 1, 2), (1, 4, 8, 1, 1), reduction])


def test_what_has_no_tiles_of_threads_is_left_alone() -> None:
    assert GpuLimits.of(GPU).allow([(4, 8, 2), 1, None])
