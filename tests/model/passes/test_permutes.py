"""Permuted and reshaped constants, without kernels that permute and reshape them."""

from __future__ import annotations

import numpy as np
import pytest

from fewtune.model.passes.permutes import with_moved_constants
from fewtune.runtime.tvm import relax, tvm


@pytest.mark.parametrize("axes", [[2, 3, 1, 0], None])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_constants_are_permuted_as_tvm_folds_them(dtype: str, axes: list[int] | None) -> None:
    weight = np.random.default_rng(0).integers(-9, 9, (3, 4, 5, 2)).astype(dtype)
    permuted = weight.transpose(axes or [3, 2, 1, 0])
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(permuted.shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            laid = builder.emit(relax.op.permute_dims(relax.const(weight, dtype), axes))
            result = builder.emit_output(relax.op.add(x, laid))
        builder.emit_func_output(result)
    _assert_folded_alike(builder.get(), "permute_dims")


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (6,), (2, 3)])
def test_constants_are_reshaped_as_tvm_folds_them(shape: tuple[int, ...]) -> None:
    bias = np.arange(6, dtype=np.float32)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            laid = builder.emit(relax.op.reshape(relax.const(bias, "float32"), shape))
            result = builder.emit_output(relax.op.add(x, laid))
        builder.emit_func_output(result)
    _assert_folded_alike(builder.get(), "reshape")


def _assert_folded_alike(module: tvm.IRModule, operator: str) -> None:
    assert operator in module.script()
    ours = with_moved_constants(module)
    assert operator not in ours.script()
    folded = relax.transform.FoldConstant()
    assert tvm.ir.save_json(folded(ours)) == tvm.ir.save_json(folded(module))
