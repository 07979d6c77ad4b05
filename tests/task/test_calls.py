"""Calls of kernels, compared with what the kernels take."""

import pytest

from fewtune.runtime.tvm import relax, te, tvm
from fewtune.task.analysis import calls_fit


def _module(takes: list[int], dtype: str) -> tvm.IRModule:
    """``main`` calls a kernel for 4x8 floats, which another takes the place of."""

    def copying(shape: list[int], of: str) -> tvm.tirx.PrimFunc:
        given = te.placeholder(shape, of, "given")
        return te.create_prim_func([given, te.compute(shape, lambda *i: given[i], "copy")])

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], "float32"))
    with builder.function("main", [x]):
        kernel = builder.add_func(copying([4, 8], "float32"), "kernel")
        with builder.dataflow():
            kind = relax.TensorType([4, 8], "float32")
            result = builder.emit_output(relax.call_tir(kernel, relax.Tuple([x]), kind))
        builder.emit_func_output(result)
    module = builder.get()
    other = copying(takes, dtype).with_attr("global_symbol", "kernel")
    module.update_func(module.get_global_var("kernel"), other)
    return module


@pytest.mark.parametrize(
    ("takes", "dtype", "fit"),
    [
        ([4, 8], "float32", True),
        ([4, 7], "float32", False),
        ([32], "float32", False),
        ([4, 8], "int32", False),
    ],
)
def test_calls_fit_kernels_of_the_same_shape_and_type(takes, dtype, fit):
    assert calls_fit(_module(takes, dtype)) is fit
