"""Permuted and reshaped constants, without kernels that permute and reshape them."""

import numpy as np
import pytest

from fewtune.model.passes.permutes import with_moved_constants
from fewtune.runtime.tvm import relax, tvm

MOVES = {
    "permuted": (lambda given: relax.op.permute_dims(given, [2, 3, 1, 0]), (5, 2, 4, 3)),
    "reversed": (lambda given: relax.op.permute_dims(given), (2, 5, 4, 3)),
    "reshaped": (lambda given: relax.op.reshape(given, (6, 1, 20)), (6, 1, 20)),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16"])
def test_constants_are_moved_as_tvm_folds_them(dtype, name):
    move, shape = MOVES[name]
    weight = np.random.default_rng(0).integers(-9, 9, (3, 4, 5, 2)).astype(dtype)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            laid = builder.emit(move(relax.const(weight, dtype)))
            result = builder.emit_output(relax.op.add(x, laid))
        builder.emit_func_output(result)
    module = builder.get()
    ours, folded = with_moved_constants(module), relax.transform.FoldConstant()
    assert "R.permute_dims" not in ours.script()
    assert "R.reshape" not in ours.script()
    assert tvm.ir.save_json(folded(ours)) == tvm.ir.save_json(folded(module))
