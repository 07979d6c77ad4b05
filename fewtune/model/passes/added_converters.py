"""Converters of ONNX operators that TVM's importer lacks, and that no other operators express."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fewtune.model.passes.tvmscript import (
    non_max_suppression,
    recurrent_layers,
)
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax, te, tvm

# TVM's names of ONNX's element types.
_TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}


@contextlib.contextmanager
def added_converters(traits: CpuTraits | None) -> Iterator[None]:
    """Within the block, TVM's importer knows the operators of this module.

    Parameters
    ----------
    traits : CpuTraits or None
        Of the processor that recurrent layers run on; without it, these have no converters.
    """
    from tvm.relax.frontend.onnx import onnx_frontend

    # TVM has no public way to add a converter.
    theirs = onnx_frontend._get_convert_map

    def extended() -> dict[str, Any]:
        return theirs() | {
            "BitCast": _BitCast,
            "CumProd": _CumProd,
            "ConvInteger": _ConvInteger,
            "MatMulInteger": _MatMulInteger,
            "NonMaxSuppression": _NonMaxSuppression,
            **({} if traits is None else recurrent_layers.converters(traits)),
        }

    onnx_frontend._get_convert_map = extended
    try:
        yield
    finally:
        onnx_frontend._get_convert_map = theirs


class _Converter:
    """The interface of a converter in TVM's importer."""

    @classmethod
    def get_converter(cls, _opset: int) -> Any:
        return cls.convert

    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        raise NotImplementedError


class _BitCast(_Converter):
    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        wanted = _TYPES.get(int(attr["to"]))
        if wanted is None:
            raise ValueError(f"its element type {attr['to']} is not supported")

        def reinterpreted(data: te.Tensor) -> te.Tensor:
            return te.compute(
                data.shape, lambda *at: tvm.tirx.reinterpret(wanted, data(*at)), name="bit_cast"
            )

        return bb.call_te(reinterpreted, inputs[0], primfunc_name_hint="bit_cast")


class _CumProd(_Converter):
    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        from tvm.relax.frontend.onnx import onnx_frontend

        data = inputs[0]
        place = onnx_frontend.get_constant(inputs[1], params)
        axis = int(place.value.numpy().reshape(())) % data.ty.ndim
        reverse = bool(attr.get("reverse", 0))
        if reverse:
            data = bb.normalize(relax.op.flip(data, axis=axis))
        data = bb.normalize(
            relax.op.cumprod(data, axis=axis, exclusive=bool(attr.get("exclusive", 0)))
        )
        return relax.op.flip(data, axis=axis) if reverse else data


class _NonMaxSuppression(_Converter):
    """Replaces TVM's own converter, whose output has a dynamic size."""

    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        from tvm.relax.frontend.onnx import onnx_frontend

        bounds = [
            each if each is None else onnx_frontend.get_constant(each, params)
            for each in inputs[2:]
        ]
        return non_max_suppression.converted(bb, [*inputs[:2], *bounds], attr)


class _ConvInteger(_Converter):
    """A convolution of bytes, as `fewtune.onnx_graph.quantized` writes it."""

    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        return relax.op.nn.conv2d(
            _centred(bb, inputs, params),
            inputs[1],
            strides=attr.get("strides", 1),
            padding=attr.get("pads", 0),
            dilation=attr.get("dilations", 1),
            groups=attr.get("group", 1),
            data_layout="NCHW",
            kernel_layout="OIHW",
            out_dtype="int32",
        )


class _MatMulInteger(_Converter):
    """A product of bytes, as `fewtune.onnx_graph.quantized` writes it."""

    @staticmethod
    def convert(bb: Any, inputs: list[Any], attr: dict[str, Any], params: Any) -> relax.Expr:
        return relax.op.matmul(_centred(bb, inputs, params), inputs[1], out_dtype="int32")


def _centred(bb: Any, inputs: list[Any], params: Any) -> relax.Expr:
    """The data minus a constant zero point, if there is one."""
    from tvm.relax.frontend.onnx import onnx_frontend

    data, _, zero, weight_zero = [*inputs, None, None][:4]
    if zero is None and weight_zero is None:
        return data
    zero = onnx_frontend.get_constant(zero, params)
    if weight_zero is not None or not isinstance(zero, tvm.ir.expr.GenericConst):
        raise ValueError("its zero points are not known")
    place = np.full((1,) * data.ty.ndim, int(zero.value.numpy().reshape(())), np.int16)
    wide = bb.normalize(relax.op.astype(data, "int16"))
    return bb.normalize(relax.op.subtract(wide, relax.const(place, "int16")))
