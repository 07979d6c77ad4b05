"""The limits of a GPU's blocks, checked before decisions are applied."""

from fewtune.runtime.tvm import tvm
from fewtune.schedule.space.search_space import GpuLimits

GPU = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 256,
        "thread_warp_size": 32,
        "max_shared_memory_per_block": 49152,
    }
)


def test_threads_of_a_block_are_counted_over_all_axes():
    limits, reduction = GpuLimits.of(GPU), (4, 8, 2)
    assert limits.allow([(2, 1, 16, 1, 2), (1, 2, 8, 1, 1), reduction, 3])
    # 512 threads; 16, less than a warp; 16 virtual ones.
    assert not limits.allow([(2, 1, 32, 1, 2), (1, 2, 16, 1, 1), reduction])
    assert not limits.allow([(2, 1, 4, 1, 2), (1, 2, 4, 1, 1), reduction])
    assert not limits.allow([(2, 4, 16, 1, 2), (1, 4, 8, 1, 1), reduction])
