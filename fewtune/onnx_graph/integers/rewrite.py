"""A quantised graph in integers: what stands between two dequantisations is one kernel of bytes.

The walk keeps, of each float tensor, what it is in whole numbers (`affine`), and writes the floats
only where an operator asks for them. A convolution or product of dequantised bytes becomes
``ConvInteger`` or ``MatMulInteger`` of unsigned activations and signed weights, whose zero points
are subtracted here; scales and biases follow as elementwise operators, which TVM fuses into it.
Maxima, copies and views move bytes as they are. Whatever else a model has stays in floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from fewtune.onnx_graph.graph import nested_graphs
from fewtune.onnx_graph.integers.affine import (
    Bytes,
    Scaled,
    floats_of,
    number,
    parameters,
    quantised,
)
from fewtune.onnx_graph.integers.weights import Dequantised, Window, as_signed, sums_fit
from fewtune.onnx_graph.operators import quantized
from fewtune.onnx_graph.operators.builder import MICROSOFT, STANDARD, GraphBuilder
from fewtune.onnx_graph.operators.fused import attributes_of, optional

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_SIGNED = 128
_INTEGER_OPERATORS = frozenset({"ConvInteger", "MatMulInteger"})
_QUANTISED = frozenset(
    {
        _QUANTIZE,
        _DEQUANTIZE,
        "QLinearConv",
        "QLinearMatMul",
        "QGemm",
        "DynamicQuantizeLinear",
        *_INTEGER_OPERATORS,
    }
)
_PLANE = 4
# What moves elements, or takes the largest, of its first input.
_MOVERS = frozenset(
    {
        "MaxPool",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Identity",
        "Slice",
        "Split",
        "DepthToSpace",
        "SpaceToDepth",
    }
)


def integers(model: ModelProto) -> ModelProto:
    """Rewrite a quantised model's products into integers.

    Parameters
    ----------
    model : ModelProto
        Static shapes, shapes inferred, operator set 11 or later; it is left as it is.

    Returns
    -------
    model : ModelProto
        Same inputs and outputs, equal but for the last rounding; the model itself where nothing in
        it is quantised. Of ``ConvInteger`` and ``MatMulInteger`` those are left whose data are
        unsigned with a constant zero point, or none, and whose weights are signed constants.
    """
    if not any(node.op_type in _QUANTISED for node in model.graph.node):
        return model
    walk = _Walk(model)
    for node in model.graph.node:
        walk.visit(node)
    for value in model.graph.output:
        walk.write(value.name)
    return walk.graph.model()


class _Walk:
    def __init__(self, model: ModelProto) -> None:
        self.graph = GraphBuilder(model, {})
        self._floats: dict[str, Bytes | Scaled] = {}
        self._weights: dict[str, tuple[Dequantised, NodeProto]] = {}
        # Quantised tensors by name: the unsigned one that holds them, and whether they are signed.
        self._unsigned: dict[str, tuple[str, bool]] = {}
        self._written: set[str] = set()
        self._readers: dict[str, list[NodeProto | None]] = {}
        for node in model.graph.node:
            for name in _read_by(node):
                self._readers.setdefault(name, []).append(node)
        for value in model.graph.output:
            self._readers.setdefault(value.name, []).append(None)
        self._handlers: dict[tuple[str, str], Callable[[NodeProto], bool]] = {
            ("", _DEQUANTIZE): self._dequantize,
            ("", _QUANTIZE): self._quantize,
            (MICROSOFT, _DEQUANTIZE): self._dequantize,
            (MICROSOFT, _QUANTIZE): self._quantize,
            ("", "Conv"): self._convolution,
            ("", "MatMul"): self._product,
            ("", "Gemm"): self._dense,
            ("", "Relu"): lambda node: self._bounded(node, 0.0, np.inf),
            ("", "Clip"): self._clip,
            ("", "Add"): self._sum,
            ("", "Sum"): self._sum,
            ("", "Concat"): self._concatenation,
            ("", "AveragePool"): self._average,
            ("", "GlobalAveragePool"): self._average,
            ("", "ReduceMean"): self._average,
            ("", "Resize"): self._resize,
            ("", "MatMulInteger"): self._integer_product,
            ("", "ConvInteger"): self._integer_convolution,
            ("", "QLinearConv"): self._whole_convolution,
            ("", "QLinearMatMul"): self._whole_product,
            (MICROSOFT, "QGemm"): self._whole_dense,
            (MICROSOFT, "QLinearAdd"): self._whole_sum,
            (MICROSOFT, "QLinearGlobalAveragePool"): self._whole_average,
            (MICROSOFT, "QLinearConcat"): self._whole_concatenation,
        }
        self._handlers |= {("", name): self._moved for name in _MOVERS}

    # The walk

    def visit(self, node: NodeProto) -> None:
        """Write a node in integers; as it is where it cannot be."""
        domain = "" if node.domain in STANDARD else node.domain
        handler = self._handlers.get((domain, node.op_type))
        if handler is not None and handler(node):
            return
        for name in _read_by(node):
            self.write(name)
        if (domain, node.op_type) in {("", kind) for kind in _INTEGER_OPERATORS}:
            quantized.HANDLERS["", node.op_type](self.graph, node, {})
        else:
            self.graph.add(node, {})

    def write(self, name: str) -> None:
        """See that the graph has a tensor that the walk has kept back."""
        if name in self._written:
            return
        graph = self.graph
        if name in self._floats:
            floats_of(graph, self._floats[name], name)
        elif name in self._weights:
            graph.add(self._weights[name][1], {})
        elif name in self._unsigned:
            found, signed = self._unsigned[name]
            if signed:
                wide = graph.cast(found, TensorProto.INT32)
                moved = graph.op("Sub", [wide, graph.constant(np.int32(_SIGNED))])
                graph.cast(moved, TensorProto.INT8, name)
            elif found != name:
                graph.op("Identity", [found], name)
        else:
            return
        self._written.add(name)

    def _only_read_by_quantisers(self, name: str) -> bool:
        readers = self._readers.get(name, [])
        return all(node is not None and node.op_type == _QUANTIZE for node in readers)

    def _keep(self, name: str, value: Bytes | Scaled) -> bool:
        self._floats[name] = value
        shape = self.graph.shape(name)
        if shape is not None:
            kind = TensorProto.UINT8 if isinstance(value, Bytes) else 0
            self.graph.declare(value.name, kind or self.graph.element_type(value.name), shape)
        return True

    def _bytes(self, name: str) -> Bytes | None:
        found = self._floats.get(name)
        return found if isinstance(found, Bytes) else None

    def _scaled(self, name: str) -> Scaled | None:
        """A float tensor that nothing else needs as floats."""
        found = self._floats.get(name)
        if isinstance(found, Bytes):
            return _scaled_bytes(found)
        readers = self._readers.get(name, [])
        # More readers than one: each would compute it anew.
        return found if found is not None and len(readers) <= 1 else None

    # Quantisation

    def _dequantize(self, node: NodeProto) -> bool:
        graph = self.graph
        data, scale, zero = optional(node.input, 3)
        given = attributes_of(node)
        if given.get("block_size") or given.get("output_dtype", 1) != TensorProto.FLOAT:
            return False
        values = graph.value(data)
        if values is not None:
            return self._dequantised_weights(node, values, scale, zero, given)
        # Of what onnxruntime's own operators give, ONNX's inference knows no type.
        kind = graph.element_type(zero if zero else data)
        found = parameters(graph, scale, zero, kind)
        if found is None:
            return False
        self._keep(node.output[0], Bytes(self._unsigned_of(data, kind), *found))
        return True

    def _dequantised_weights(
        self, node: NodeProto, values: np.ndarray, scale: str, zero: str, given: dict[str, object]
    ) -> bool:
        factors = self.graph.value(scale)
        zeros = self.graph.value(zero) if zero else np.zeros(1, values.dtype)
        if factors is None or zeros is None or factors.dtype != np.float32:
            return False
        if any(each.size != 1 and each.ndim != 1 for each in (factors, zeros)):
            return False
        found = Dequantised(values, factors, zeros, int(given.get("axis", 1)))
        self._weights[node.output[0]] = (found, node)
        return True

    def _unsigned_of(self, name: str, element_type: int) -> str:
        if name in self._unsigned:
            return self._unsigned[name][0]
        if element_type == TensorProto.UINT8:
            return name
        graph = self.graph
        wide = graph.cast(name, TensorProto.INT32)
        moved = graph.op("Add", [wide, graph.constant(np.int32(_SIGNED))])
        found = graph.cast(moved, TensorProto.UINT8)
        self._unsigned[name] = (found, True)
        self._written.add(name)
        return found

    def _quantize(self, node: NodeProto) -> bool:
        graph = self.graph
        data, scale, zero = optional(node.input, 3)
        given = attributes_of(node)
        kind = graph.element_type(zero) if zero else given.get("output_dtype", 0)
        found = parameters(graph, scale, zero, kind or TensorProto.UINT8)
        if found is None or given.get("block_size") or graph.element_type(data) not in (0, 1):
            return False
        signed = kind == TensorProto.INT8
        output = node.output[0]
        name = graph.fresh(f"{output}_unsigned") if signed else output
        same, scaled = self._bytes(data), self._scaled(data)
        if same is not None and same.is_like(Bytes("", *found)):
            self._unsigned[output] = (same.name, signed)
            return True
        if scaled is None and self._only_read_by_quantisers(data):
            scaled = self._floats.get(data)
        if scaled is not None:
            quantised(graph, scaled, *found, name)
        else:
            self.write(data)
            factor, place = graph.constant(found[0]), graph.constant(np.uint8(found[1]))
            graph.op(_QUANTIZE, [data, factor, place], name)
        shape = graph.shape(output)
        if shape is not None:
            graph.declare(name, TensorProto.UINT8, shape)
        self._unsigned[output] = (name, signed)
        return True

    # Products

    def _convolution(self, node: NodeProto) -> bool:
        data, weight, bias = optional(node.input, 3)
        found = self._operands(data, weight, axis=0)
        if found is None:
            return False
        given, weights, scales = found
        shape = self.graph.shape(given.name)
        if shape is None or len(shape) != _PLANE or weights.ndim != _PLANE:
            return False
        window = Window.of(attributes_of(node), shape, list(weights.shape[2:]))
        if not _has_kernel(window, weights, shape):
            return False
        added = self._added(bias, scales * np.float64(given.scale), (1, -1, 1, 1))
        if added is None or not sums_fit(weights, (1, 2, 3), added[0]):
            return False
        sums = self._summed("ConvInteger", given, weights, added[0], window.attributes)
        factor = (scales * np.float64(given.scale)).reshape(1, -1, 1, 1)
        return self._keep(node.output[0], Scaled(sums, factor, added[1]))

    def _product(self, node: NodeProto) -> bool:
        return self._matrix(node, *node.input, "", 1.0)

    def _dense(self, node: NodeProto) -> bool:
        given = attributes_of(node)
        data, weight, bias = optional(node.input, 3)
        if given.get("transA") or (bias and given.get("beta", 1.0) != 1.0):
            return False
        alpha = float(given.get("alpha", 1.0))
        return self._matrix(node, data, weight, bias, alpha, bool(given.get("transB")))

    def _matrix(
        self, node: NodeProto, data: str, weight: str, bias: str, alpha: float, turned: bool = False
    ) -> bool:
        found = self._operands(data, weight, axis=0 if turned else 1)
        if found is None:
            return False
        given, weights, scales = found
        shape = self.graph.shape(given.name)
        if weights.ndim != 2 or shape is None or len(shape) < 2:  # noqa: PLR2004
            return False
        weights = np.ascontiguousarray(weights.T) if turned else weights
        factor = scales * np.float64(given.scale) * alpha
        added = self._added(bias, factor, (-1,))
        if added is None or not sums_fit(weights, (0,), added[0]):
            return False
        sums = self._summed("MatMulInteger", given, weights, added[0], {})
        return self._keep(node.output[0], Scaled(sums, factor, added[1]))

    def _operands(
        self, data: str, weight: str, axis: int
    ) -> tuple[Bytes, np.ndarray, np.ndarray] | None:
        given, found = self._bytes(data), self._weights.get(weight)
        if given is None or found is None:
            return None
        weights, scales = found[0].centred(), found[0].scales(axis)
        return None if weights is None or scales is None else (given, weights, scales)

    def _added(
        self, bias: str, scales: np.ndarray, shape: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """A bias as whole numbers of the sums, where it is that, and as floats."""
        none = np.zeros(1)
        if not bias:
            return none.astype(np.int64), none
        if bias in self._weights:
            found = self._weights[bias][0]
            whole = found.values.astype(np.int64) - found.zero.astype(np.int64)
            floats = whole * found.scale.astype(np.float64)
            near = np.allclose(found.scale, scales, rtol=1e-5, atol=0)
            is_whole = found.values.dtype == np.int32 and near
        else:
            values = self.graph.value(bias)
            if values is None:
                return None
            floats, is_whole = values.astype(np.float64), False
        if floats.ndim > 1 and floats.size != max(floats.shape):
            return None
        floats = floats.reshape(-1)
        if is_whole:
            return whole.reshape(-1).reshape(shape), none
        return none.astype(np.int64), floats.reshape(shape)

    def _summed(
        self,
        operator: str,
        data: Bytes,
        weights: np.ndarray,
        added: np.ndarray,
        attributes: dict[str, object],
    ) -> str:
        graph = self.graph
        inputs = [data.name, graph.constant(weights)]
        if data.zero:
            inputs.append(graph.constant(np.uint8(data.zero)))
        sums = graph.op(operator, inputs, **attributes)
        if added.any():
            sums = graph.op("Add", [sums, graph.constant(added.astype(np.int32))])
        return sums

    # Elementwise operators, copies and means

    def _bounded(self, node: NodeProto, least: float, most: float) -> bool:
        found = self._scaled(node.input[0])
        if found is None:
            return False
        return self._keep(node.output[0], found.bounded(least, most))

    def _clip(self, node: NodeProto) -> bool:
        given = attributes_of(node)
        bounds: list[float] = []
        names = optional(node.input[1:], 2)
        for name, key, default in zip(names, ("min", "max"), (-np.inf, np.inf), strict=True):
            value = number(self.graph, name) if name else given.get(key, default)
            if value is None or np.isnan(value):
                return False
            bounds.append(float(value))
        return bounds[0] <= bounds[1] and self._bounded(node, *bounds)

    def _sum(self, node: NodeProto) -> bool:
        if len(node.input) != 2:  # noqa: PLR2004
            return False
        first, second = (self._bytes(name) for name in node.input)
        if first is None or second is None:
            return False
        graph = self.graph
        data = [graph.cast(each.name, TensorProto.FLOAT) for each in (first, second)]
        ratio = np.float64(first.scale) / np.float64(second.scale)
        if ratio != 1:
            data[0] = graph.op("Mul", [data[0], graph.constant(np.float32(ratio))])
        total = graph.op("Add", data)
        offset = -sum(np.float64(each.scale) * each.zero for each in (first, second))
        scaled = Scaled(total, np.array(np.float64(second.scale)), np.array(offset))
        return self._keep(node.output[0], scaled)

    def _moved(self, node: NodeProto) -> bool:
        found = self._bytes(node.input[0])
        if found is None or len([name for name in node.output if name]) != len(node.output):
            return False
        if node.op_type == "MaxPool" and len(node.output) > 1:
            return False
        for name in node.input[1:]:
            self.write(name)
        return self._with_bytes(node, [found.name, *node.input[1:]], found)

    def _resize(self, node: NodeProto) -> bool:
        given = attributes_of(node)
        outside = given.get("coordinate_transformation_mode", b"") == b"tf_crop_and_resize"
        if given.get("mode", b"nearest") != b"nearest" or outside:
            return False
        return self._moved(node)

    def _with_bytes(self, node: NodeProto, inputs: list[str], like: Bytes) -> bool:
        graph = self.graph
        outputs = [graph.fresh(f"{name}_bytes") for name in node.output]
        copy = NodeProto.FromString(node.SerializeToString())
        copy.input[:], copy.output[:] = inputs, outputs
        copy.name = outputs[0]
        graph.add(copy, {})
        for name, output in zip(node.output, outputs, strict=True):
            self._keep(name, replace(like, name=output))
        return True

    def _concatenation(self, node: NodeProto) -> bool:
        parts = [self._floats.get(name) for name in node.input]
        if any(part is None for part in parts):
            return False
        like = parts[0]
        alike = isinstance(like, Bytes) and all(
            isinstance(part, Bytes) and part.is_like(like) for part in parts
        )
        if alike:
            return self._with_bytes(node, [part.name for part in parts], like)
        readers = self._readers.get(node.output[0], [])
        if len(readers) != 1 or readers[0] is None or readers[0].op_type != _QUANTIZE:
            return False
        _, scale, zero = optional(readers[0].input, 3)
        kind = self.graph.element_type(zero) if zero else TensorProto.UINT8
        found = parameters(self.graph, scale, zero, kind)
        scaled = [self._scaled(name) for name in node.input]
        if found is None or any(part is None for part in scaled):
            return False
        like = Bytes("", *found)
        names = [
            part.name
            if isinstance(part, Bytes) and part.is_like(like)
            else quantised(self.graph, each, *found)
            for part, each in zip(parts, scaled, strict=True)
        ]
        return self._with_bytes(node, names, like)

    def _average(self, node: NodeProto) -> bool:
        found, given = self._bytes(node.input[0]), attributes_of(node)
        if found is None:
            return False
        # Zeros that are counted are none of the bytes'.
        if given.get("count_include_pad") and found.zero and any(given.get("pads", [])):
            return False
        graph = self.graph
        for name in node.input[1:]:
            self.write(name)
        output = graph.fresh(f"{node.output[0]}_mean")
        copy = NodeProto.FromString(node.SerializeToString())
        copy.input[0], copy.output[0] = graph.cast(found.name, TensorProto.FLOAT), output
        copy.name = output
        graph.add(copy, {})
        return self._keep(node.output[0], replace(_scaled_bytes(found), name=output))

    # Integer operators as they come

    def _integer_product(self, node: NodeProto) -> bool:
        data, weight, zero, weight_zero = optional(node.input, 4)
        weights = self._integer_weights(data, weight, weight_zero, -1)
        shape = self.graph.shape(data)
        if weights is None or weights.ndim != 2 or shape is None or len(shape) < 2:  # noqa: PLR2004
            return False
        sums = weights.astype(np.int64).sum(0)
        return self._with_zero(node, weights, zero, sums, (0,), {})

    def _integer_convolution(self, node: NodeProto) -> bool:
        data, weight, zero, weight_zero = optional(node.input, 4)
        weights = self._integer_weights(data, weight, weight_zero, 0)
        shape = self.graph.shape(data)
        if weights is None or shape is None or len(shape) != _PLANE or weights.ndim != _PLANE:
            return False
        window = Window.of(attributes_of(node), shape, list(weights.shape[2:]))
        if not _has_kernel(window, weights, shape):
            return False
        sums = window.sums(weights, shape)
        return self._with_zero(node, weights, zero, sums, (1, 2, 3), window.attributes)

    def _integer_weights(
        self, data: str, weight: str, weight_zero: str, axis: int
    ) -> np.ndarray | None:
        graph = self.graph
        values = graph.value(weight)
        zero = graph.value(weight_zero) if weight_zero else np.zeros(1, np.int8)
        kind = TensorProto.UINT8 if data in self._unsigned else graph.element_type(data)
        signed = self._unsigned.get(data, ("", False))[1]
        if values is None or zero is None or kind != TensorProto.UINT8 or signed:
            return None
        if zero.size > 1:
            shape = [1] * values.ndim
            shape[axis] = -1
            zero = zero.reshape(shape)
        return as_signed(values, zero)

    def _with_zero(
        self,
        node: NodeProto,
        weights: np.ndarray,
        zero: str,
        sums: np.ndarray,
        axes: tuple[int, ...],
        attributes: dict[str, object],
    ) -> bool:
        graph, data = self.graph, node.input[0]
        place = graph.value(zero) if zero else np.zeros(1, np.uint8)
        if not sums_fit(weights, axes, sums * 255):
            return False
        scalar = (graph.shape(zero) in ([], [1])) if place is None else place.size == 1
        if not scalar:
            return False
        self.write(data)
        output = node.output[0]
        inputs = [data, graph.constant(weights)]
        if place is not None or not sums.any():
            if place is not None and place.any():
                inputs.append(graph.constant(place.reshape(())))
            graph.op(node.op_type, inputs, output, **attributes)
            return True
        result = graph.op(node.op_type, inputs, **attributes)
        self.write(zero)
        wide = graph.cast(zero, TensorProto.INT32)
        product = graph.op("Mul", [graph.constant(sums.astype(np.int32)), wide])
        graph.op("Sub", [result, product], output)
        return True

    # Operators that dequantise and quantise themselves

    def _whole_convolution(self, node: NodeProto) -> bool:
        data, scale, zero, weight, weight_scale, weight_zero, out_scale, out_zero, bias = optional(
            node.input, 9
        )
        first = self._taken([data, scale, zero])
        second = self._taken([weight, weight_scale, weight_zero], axis=0)
        if first is None or second is None or not self._is_byte(out_scale, out_zero):
            return False
        inputs = [first, second]
        if bias:
            inputs.append(self._whole_bias(bias, scale, weight_scale))
        result = self.graph.fresh(f"{node.output[0]}_float")
        conv = NodeProto(op_type="Conv", input=inputs, output=[result], attribute=node.attribute)
        return self._convolution(conv) and self._given(result, out_scale, out_zero, node)

    def _whole_product(self, node: NodeProto) -> bool:
        first, second = self._taken(node.input[:3]), self._taken(node.input[3:6], axis=1)
        out_scale, out_zero = node.input[6:8]
        if first is None or second is None or not self._is_byte(out_scale, out_zero):
            return False
        result = self.graph.fresh(f"{node.output[0]}_float")
        product = NodeProto(op_type="MatMul", input=[first, second], output=[result])
        return self._product(product) and self._given(result, out_scale, out_zero, node)

    def _whole_dense(self, node: NodeProto) -> bool:
        given, names = attributes_of(node), optional(node.input, 9)
        bias, out_scale, out_zero = names[6:9]
        axis = 0 if given.get("transB") else 1
        first, second = self._taken(names[:3]), self._taken(names[3:6], axis=axis)
        if first is None or second is None or given.get("alpha", 1.0) != 1.0:
            return False
        if out_scale and not self._is_byte(out_scale, out_zero):
            return False
        inputs = [first, second]
        if bias:
            inputs.append(self._whole_bias(bias, names[1], names[4]))
        result = self.graph.fresh(f"{node.output[0]}_float") if out_scale else node.output[0]
        dense = helper.make_node("Gemm", inputs, [result], **given)
        return self._dense(dense) and (
            not out_scale or self._given(result, out_scale, out_zero, node)
        )

    def _whole_sum(self, node: NodeProto) -> bool:
        names = optional(node.input, 8)
        parts = [self._taken(names[:3]), self._taken(names[3:6])]
        if None in parts or not self._is_byte(*names[6:8]):
            return False
        result = self.graph.fresh(f"{node.output[0]}_float")
        summed = NodeProto(op_type="Add", input=parts, output=[result])
        return self._sum(summed) and self._given(result, *names[6:8], node)

    def _whole_average(self, node: NodeProto) -> bool:
        names = optional(node.input, 5)
        first = self._taken(names[:3])
        last = attributes_of(node).get("channels_last", 0)
        if first is None or last or not self._is_byte(*names[3:5]):
            return False
        result = self.graph.fresh(f"{node.output[0]}_float")
        pool = NodeProto(op_type="GlobalAveragePool", input=[first], output=[result])
        return self._average(pool) and self._given(result, *names[3:5], node)

    def _whole_concatenation(self, node: NodeProto) -> bool:
        scale, zero, *others = node.input
        taken = [self._taken(others[begin : begin + 3]) for begin in range(0, len(others), 3)]
        if None in taken or not self._is_byte(scale, zero):
            return False
        result = self.graph.fresh(f"{node.output[0]}_float")
        quantizer = NodeProto(op_type=_QUANTIZE, input=[result, scale, zero], output=node.output)
        self._readers[result] = [quantizer]
        axis = attributes_of(node)["axis"]
        joined = helper.make_node("Concat", taken, [result], axis=axis)
        return self._concatenation(joined) and self._quantize(quantizer)

    def _is_byte(self, scale: str, zero: str) -> bool:
        kind = self.graph.element_type(zero) if zero else TensorProto.UINT8
        return parameters(self.graph, scale, zero, kind) is not None

    def _taken(self, names: list[str], axis: int = 1) -> str | None:
        """A name for an operand in floats, which is kept back."""
        data = names[0]
        name = self.graph.fresh(f"{data}_float")
        inputs = [each for each in names if each]
        node = helper.make_node(_DEQUANTIZE, inputs, [name], axis=axis)
        shape = self.graph.shape(data)
        if shape is not None:
            self.graph.declare(name, TensorProto.FLOAT, shape)
        return name if self._dequantize(node) else None

    def _whole_bias(self, bias: str, scale: str, weight_scale: str) -> str:
        factors = [self.graph.value(each) for each in (scale, weight_scale)]
        name = self.graph.fresh(f"{bias}_float")
        values = self.graph.value(bias)
        if values is None or any(each is None for each in factors):
            return bias
        factor = (factors[0].reshape(-1) * factors[1].reshape(-1)).astype(np.float32)
        found = Dequantised(values, factor, np.zeros(1, np.int32), 0)
        node = helper.make_node(_DEQUANTIZE, [bias, self.graph.constant(factor)], [name], axis=0)
        self._weights[name] = (found, node)
        return name

    def _given(self, name: str, scale: str, zero: str, node: NodeProto) -> bool:
        shape = self.graph.shape(node.output[0])
        if shape is not None:
            self.graph.declare(name, TensorProto.FLOAT, shape)
        quantizer = NodeProto(
            op_type=_QUANTIZE, input=[each for each in (name, scale, zero) if each]
        )
        quantizer.output[:] = [node.output[0]]
        return self._quantize(quantizer)


def _scaled_bytes(given: Bytes) -> Scaled:
    scale = np.float64(given.scale)
    return Scaled(given.name, np.array(scale), np.array(-scale * given.zero))


def _has_kernel(window: Window, weights: np.ndarray, shape: list[int]) -> bool:
    """Whether a convolution has a kernel of bytes: of all channels together, or of each alone."""
    depthwise = window.groups == shape[1] == weights.shape[0] and weights.shape[1] == 1
    return window.groups == 1 or depthwise


def _read_by(node: NodeProto) -> list[str]:
    """What a node and the graphs nested in it read."""
    names = [name for name in node.input if name]
    for graph in nested_graphs(node):
        for inner in graph.node:
            names += _read_by(inner)
        names += [value.name for value in graph.output]
    return names
