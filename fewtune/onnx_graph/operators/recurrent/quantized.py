"""onnxruntime's LSTM with 8-bit weights, which quantises the input of each product."""

from __future__ import annotations

import functools

from onnx import NodeProto, TensorProto

from fewtune.onnx_graph.graph import optional
from fewtune.onnx_graph.operators.builder import MICROSOFT, GraphBuilder, Handler, Scope
from fewtune.onnx_graph.operators.recurrent.layers import expand_layer, part_of
from fewtune.onnx_graph.quantized.affine import (
    along,
    centered,
    dynamic_quantize,
    exact_product,
    floats,
)

# Each step quantises its state: a dozen nodes more than a step in floats.
_MOST_STEPS = 200


def _expand(graph: GraphBuilder, node: NodeProto, scope: Scope) -> bool:
    (weights, recurrent), scales = node.input[1:3], optional(node.input, 12)[8:]
    by_weight = {weights: scales[:2], recurrent: scales[2:]}
    if any(graph.shape(name) is None for name in (weights, recurrent, *scales) if name):
        return graph.refuse(node, "has weights whose shape is not known")

    @functools.cache
    def operands(weights: str, index: int) -> tuple[str, str]:
        """A direction's weights less their zero point, and their scale; once for all steps."""
        scale, zero = (_of_direction(graph, name, index) for name in by_weight[weights])
        return centered(graph, part_of(graph, weights, index), zero, -1), along(graph, scale, 1, 0)

    @functools.cache
    def quantized(rows: str) -> tuple[str, str]:
        """Quantised rows and their scale; once for all directions that read them."""
        names = [graph.fresh(f"{rows}_{part}") for part in ("quantized", "scale", "zero")]
        dynamic_quantize(graph, rows, names)
        return centered(graph, names[0], names[2], -2), floats(graph, names[1])

    def product(rows: str, weights: str, index: int) -> str:
        return _product(graph, *quantized(rows), *operands(weights, index))

    return expand_layer(graph, node, "LSTM", product, _MOST_STEPS)


def _product(graph: GraphBuilder, left: str, left_scale: str, right: str, scale: str) -> str:
    """Quantised rows times a direction's weights, scaled back."""
    sums = graph.cast(exact_product(graph, left, right), TensorProto.FLOAT)
    return graph.op("Mul", [sums, graph.fold("Mul", [scale, left_scale])])


def _of_direction(graph: GraphBuilder, name: str, index: int) -> str:
    """A direction's scale or zero point: a scalar, or one for each column."""
    return (
        graph.fold_slice(name, 0, index, index + 1)
        if len(graph.shape(name)) == 1
        else part_of(graph, name, index)
    )


HANDLERS: dict[tuple[str, str], Handler] = {(MICROSOFT, "DynamicQuantizeLSTM"): _expand}
