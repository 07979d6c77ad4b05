"""Products and activations that onnxruntime's optimiser fuses (com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from onnx import NodeProto

from fewtune.onnx_graph.graph import attributes_of, optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope

Activation = Callable[[GraphBuilder, str], str]

_ACTIVATIONS = ("Elu", "HardSigmoid", "Identity", "LeakyRelu", "Relu", "Sigmoid", "Softplus")
_ACTIVATIONS += ("Softsign", "Tanh")
_BY_LOWER_CASE = {name.lower(): name for name in _ACTIVATIONS}


def activation(name: str, parameters: Sequence[float] = ()) -> Activation | None:
    """The activation of a name, in any case; None if it is unknown.

    Its parameters are alpha and beta, or the bounds of a ``Clip``; ONNX's defaults unless given.
    """
    if name == "Clip" and len(parameters) == 2:
        return lambda graph, data: graph.clip(data, *parameters)
    operator = _BY_LOWER_CASE.get(name.lower())
    if operator is None:
        return None
    given = dict(zip(("alpha", "beta"), parameters, strict=False))
    return lambda graph, data: graph.op(operator, [data], **given)


def _fused_product(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """A Conv or a Gemm with an activation; a Conv may add a tensor before it."""
    given = attributes_of(node)
    name = given.pop("activation", b"Identity").decode()
    parameters = [*given.pop("activation_params", [])]
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters += [given.pop(each) for each in names if each in given]
    function = activation(name, parameters)
    if function is None:
        return graph.refuse(node, f"has an activation that is not known: {name}")
    inputs, added = [each for each in node.input[:3] if each], [*node.input[3:]]
    result = graph.op(node.op_type.removeprefix("Fused"), inputs, **given)
    if added:
        result = graph.op("Add", [result, *added])
    graph.op("Identity", [function(graph, result)], node.output[0])
    return True


def _fused_matmul(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    given = attributes_of(node)
    operands = []
    for name, side in zip(node.input[:2], "AB", strict=True):
        shape = graph.shape(name)
        if shape is None or given.get(f"transBatch{side}"):
            return graph.refuse(node, "reads a tensor of unknown shape, or moves its first axis")
        order = list(range(len(shape)))
        if given.get(f"trans{side}") and len(shape) > 1:
            order[-2:] = order[:-3:-1]
        operands.append(
            name if order == sorted(order) else graph.fold("Transpose", [name], perm=order)
        )
    alpha = given.get("alpha", 1.0)
    if alpha == 1.0:
        graph.op("MatMul", operands, node.output[0])
        return True
    graph.op("Mul", [graph.op("MatMul", operands), alpha], node.output[0])
    return True


def _gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    """Gelu, and BiasGelu, which adds a vector first."""
    data = _biased(graph, node)
    inner = graph.op("Mul", [data, math.sqrt(0.5)])
    return _write_gelu(graph, data, graph.op("Erf", [inner]), node.output[0])


def _fast_gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    data = _biased(graph, node)
    square = graph.op("Mul", [data, data])
    factor = math.sqrt(2 / math.pi)
    slope = graph.op("Add", [graph.op("Mul", [square, factor * 0.044715]), factor])
    inner = graph.op("Mul", [data, slope])
    return _write_gelu(graph, data, graph.op("Tanh", [inner]), node.output[0])


def _biased(graph: GraphBuilder, node: NodeProto) -> str:
    data, bias = optional(node.input, 2)
    return graph.op("Add", [data, bias]) if bias else data


def _write_gelu(graph: GraphBuilder, data: str, function: str, output: str) -> bool:
    half, gate = graph.op("Mul", [data, 0.5]), graph.op("Add", [function, 1.0])
    graph.op("Mul", [half, gate], output)
    return True


def _quick_gelu(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    (data,) = node.input
    alpha = attributes_of(node).get("alpha", 1.702)
    gate = graph.op("Sigmoid", [graph.op("Mul", [data, alpha])])
    graph.op("Mul", [data, gate], node.output[0])
    return True


HANDLERS: dict[tuple[str, str], Handler] = {
    (MICROSOFT, "FusedConv"): _fused_product,
    (MICROSOFT, "FusedGemm"): _fused_product,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "TransposeMatMul"): _fused_matmul,
    (MICROSOFT, "Gelu"): _gelu,
    (MICROSOFT, "BiasGelu"): _gelu,
    (MICROSOFT, "FastGelu"): _fast_gelu,
    (MICROSOFT, "QuickGelu"): _quick_gelu,
}
