"""Reductions of integers that end in a root or a logarithm, as onnxruntime cuts them off."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder

CUT_OFF = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})


def reduced(graph: GraphBuilder, node: NodeProto, axes: list[int], keepdims: int) -> None:
    """Write out a node of `CUT_OFF` that reads integers: it adds up integers, too."""
    data = node.input[0]
    kind = graph.element_type(data)
    terms, function = data, "Log"
    if node.op_type == "ReduceL2":
        terms, function = graph.op("Mul", [data, data]), "Sqrt"
    elif node.op_type == "ReduceLogSumExp":
        # Each exponential is cut off: of the largest number it is 1, of any other 0.
        most = graph.reduce("ReduceMax", data, axes)
        terms = graph.cast(graph.op("Equal", [data, most]), kind)
    total = graph.cast(graph.reduce("ReduceSum", terms, axes, keepdims), TensorProto.DOUBLE)
    is_shifted = node.op_type == "ReduceLogSumExp"
    result = graph.op(function, [total])
    result = graph.cast(result, kind, None if is_shifted else node.output[0])
    if is_shifted:
        most = graph.reduce("ReduceMax", data, axes, keepdims)
        graph.op("Add", [result, most], node.output[0])
