"""Default schedules: the same numbers as unscheduled code, on threads and vector lanes."""

import numpy as np
import pytest
import tvm_ffi

from fewtune.runtime.tvm import relax, tvm
from fewtune.schedule.defaults import apply_default_schedules, default_schedule
from tests.made.kernels import TARGET, Build, Shape, convolution, kernels, lowered, pool, run

CUDA = tvm.target.Target(
    {
        "kind": "cuda",
        "arch": "sm_80",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
        "thread_warp_size": 32,
    }
)


CASES: dict[str, tuple[Build, list[Shape]]] = {
    "conv2d_nhwc": (
        convolution("NHWC", "HWIO", padding=1),
        [(1, 14, 14, 32), (3, 3, 32, 64), (1, 1, 1, 64)],
    ),
    "conv2d_nhwc_grouped": (
        convolution("NHWC", "HWIO", groups=4),
        [(1, 14, 14, 64), (1, 1, 16, 68), (1, 1, 1, 68)],
    ),
    # Padding after the results is not computed with any of them.
    "conv2d_nchw_padded_behind": (
        lambda data, weight: relax.op.nn.pad(
            relax.op.nn.conv2d(data, weight, padding=1), [0, 0, 0, 0, 0, 1, 0, 2]
        ),
        [(1, 8, 12, 12), (16, 8, 3, 3)],
    ),
    "matmul_padded_behind": (
        lambda a, b: relax.op.nn.pad(relax.op.matmul(a, b), [0, 3, 0, 1], pad_value=2.0),
        [(160, 96), (96, 128)],
    ),
    "depthwise_nhwc": (
        convolution("NHWC", "HWIO", groups=48, padding=1),
        [(1, 19, 19, 48), (3, 3, 1, 48), (1, 1, 1, 48)],
    ),
    "conv2d_nchw_odd_strided": (
        convolution("NCHW", "OIHW", strides=2, padding=1),
        [(1, 3, 37, 37), (7, 3, 3, 3), (1, 7, 1, 1)],
    ),
    "matmul_batched": (relax.op.matmul, [(3, 19, 40), (3, 40, 33)]),
    "matrix_vector": (
        lambda a, b, c: relax.op.add(relax.op.matmul(a, b), c),
        [(1, 544), (544, 1000), (1000,)],
    ),
    "max_pool_nhwc": (
        pool("max", "NHWC", pool_size=3, strides=2, padding=1),
        [(1, 27, 27, 64)],
    ),
    "global_pool_nhwc": (lambda x: relax.op.mean(x, [1, 2], True), [(1, 13, 13, 1000)]),
    "softmax_rows": (lambda x: relax.op.nn.softmax(x, -1), [(77, 197)]),
    "softmax_channels": (lambda x: relax.op.nn.softmax(x, 1), [(1, 21, 40, 40)]),
    "layer_norm": (
        lambda x, g, b: relax.op.nn.layer_norm(x, g, b, [-1]),
        [(50, 256), (256,), (256,)],
    ),
    "argmax": (lambda x: relax.op.argmax(x, -1), [(33, 257)]),
    "argmax_of_short_rows": (
        lambda x: relax.op.add(relax.op.argmax(x, -1), relax.const(1, "int64")),
        [(16, 7)],
    ),
    "concatenate_channels": (
        lambda a, b, c: relax.op.concat([a, b, c], 3),
        [(1, 13, 13, 64), (1, 13, 13, 48), (1, 13, 13, 7)],
    ),
    "transpose_odd": (lambda x: relax.op.permute_dims(x), [(131, 257)]),
    "elementwise": (
        lambda x, b: relax.op.nn.relu(relax.op.multiply(relax.op.add(x, b), b)),
        [(1, 19, 19, 96), (1, 1, 1, 96)],
    ),
    "prime_vector": (relax.op.nn.relu, [(50021,)]),
    "cumsum": (lambda x: relax.op.cumsum(x, 1), [(8, 100)]),
    "scalar": (relax.op.sqrt, [()]),
}
# These are left as they are.
PLAIN = {"argmax_of_short_rows", "cumsum", "scalar"}
# Too little work for threads, or nothing that could be shared among them.
SERIAL = PLAIN | {"argmax"}
# Odd extents are left to LLVM, whose vectors end in a scalar rest.
SCALAR = {"concatenate_channels", "conv2d_nchw_odd_strided", "conv2d_nhwc_grouped"}
SCALAR |= {"matmul_batched", "prime_vector", "softmax_rows"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_scheduled_kernel_computes_the_same_on_threads_and_lanes(name):
    build, shapes = CASES[name]
    text = ""
    for kernel in kernels(lowered(build, *shapes)):
        schedule = default_schedule(kernel, TARGET)
        if schedule is None:
            assert name in PLAIN
            continue
        text += schedule.mod.script()
        np.testing.assert_allclose(run(schedule.mod), run(kernel), rtol=1e-4, atol=1e-4)
    assert "T.parallel" in text or name in SERIAL
    assert "T.vectorized" in text or name in SCALAR | SERIAL


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64"])
def test_elementwise_of_any_type_is_scheduled(dtype):
    (kernel,) = kernels(lowered(relax.op.add, (57, 640), (57, 640), dtype=dtype))
    schedule = default_schedule(kernel, TARGET)
    assert schedule is not None
    np.testing.assert_array_equal(run(schedule.mod), run(kernel))


def test_a_small_tensor_starts_no_threads():
    (kernel,) = kernels(lowered(relax.op.nn.relu, (1, 64)))
    assert "T.parallel" not in default_schedule(kernel, TARGET).mod.script()


def test_a_narrow_cpu_gets_narrow_vectors():
    narrow = tvm.target.Target({"kind": "llvm", "mcpu": "haswell", "num-cores": 2})
    (kernel,) = kernels(lowered(relax.op.nn.relu, (1, 4, 64)))
    assert "T.vectorized(T.int64(8))" in default_schedule(kernel, narrow).mod.script()


def test_a_gpu_kernel_gets_its_threads_and_can_be_stored():
    (kernel,) = kernels(lowered(relax.op.matmul, (64, 64), (64, 64)))
    schedule = default_schedule(kernel, CUDA)
    assert "threadIdx.x" in schedule.mod.script()
    again = tvm.s_tir.Schedule(kernel)
    schedule.trace.apply_to_schedule(again, remove_postproc=False)
    assert tvm_ffi.structural_equal(again.mod, schedule.mod)


@pytest.mark.parametrize("target", [TARGET, CUDA], ids=["llvm", "cuda"])
def test_apply_marks_only_the_kernels_named(target):
    def build(data: relax.Expr, weight: relax.Expr) -> relax.Expr:
        return relax.op.nn.softmax(relax.op.matmul(data, weight), -1)

    module = lowered(build, (64, 64), (64, 64))
    applied = apply_default_schedules(module, ["matmul"], target)
    marked = {
        variable.name_hint: bool(function.attrs and function.attrs.get("tirx.is_scheduled"))
        for variable, function in applied.functions_items()
    }
    assert marked == {"main": False, "matmul": True, "softmax": False}
    assert "tirx.is_scheduled" not in (module["matmul"].attrs or {})
