"""Reductions of integers that end in a root or a logarithm, which onnxruntime truncates."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.operators.builder import GraphBuilder

TRUNCATED = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"})


def write_reduction(graph: GraphBuilder, node: NodeProto, axes: list[int], keepdims: int) -> None:
    """Write a node of `TRUNCATED` whose input is integer, summed in the same type.

    Parameters
    ----------
    graph : GraphBuilder
    node : NodeProto
    axes : list of int
        Axes that it reduces.
    keepdims : int
        1 to keep them as axes of one element, 0 to drop them.
    """
    data = node.input[0]
    kind = graph.element_type(data)
    terms, function = data, "Log"
    is_shifted = node.op_type == "ReduceLogSumExp"
    if node.op_type == "ReduceL2":
        terms, function = graph.op("Mul", [data, data]), "Sqrt"
    elif is_shifted:
        # Each exponential is truncated: 1 for the largest number, 0 for the others.
        most = graph.reduce("ReduceMax", data, axes)
        terms = graph.cast(graph.op("Equal", [data, most]), kind)
    total = graph.cast(graph.reduce("ReduceSum", terms, axes, keepdims), TensorProto.DOUBLE)
    result = graph.op(function, [total])
    result = graph.cast(result, kind, None if is_shifted else node.output[0])
    if is_shifted:
        most = graph.reduce("ReduceMax", data, axes, keepdims)
        graph.op("Add", [result, most], node.output[0])
