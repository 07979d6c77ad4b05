"""Activation functions that fused and recurrent operators name in an attribute."""

from __future__ import annotations

from collections.abc import Callable

from fewtune.onnx_graph.operators.builder import GraphBuilder

Activation = Callable[[GraphBuilder, str], str]

# Defaults of alpha and beta. ONNX has none for affine, scaledtanh and thresholdedrelu, for which
# onnxruntime takes 0.
_PARAMETERS = {
    "affine": (0.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (0.0, 0.0),
    "thresholdedrelu": (0.0,),
}
_PLAIN = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softsign": "Softsign",
    "softplus": "Softplus",
    "identity": "Identity",
}


def activation(name: str, alphas: list[float], betas: list[float]) -> Activation | None:
    """The activation of a name.

    Parameters
    ----------
    name : str
    alphas, betas : list of float
        Its parameters are taken from the front of these lists, in place.

    Returns
    -------
    activation : callable or None
        Adds its nodes to a graph and returns the result's name; None for an unknown name.
    """
    kind = name.lower()
    if kind in _PLAIN:
        return lambda graph, data: graph.op(_PLAIN[kind], [data])
    defaults = _PARAMETERS.get(kind)
    if defaults is None:
        return None
    alpha = alphas.pop(0) if alphas else defaults[0]
    beta = 0.0
    if len(defaults) > 1:
        beta = betas.pop(0) if betas else defaults[1]
    return lambda graph, data: _with_parameters(graph, kind, data, alpha, beta)


def _with_parameters(graph: GraphBuilder, kind: str, data: str, alpha: float, beta: float) -> str:
    def scaled(value: str, factor: float) -> str:
        return graph.op("Mul", [value, graph.constant(factor, graph.dtype(data))])

    if kind == "affine":
        return graph.op("Add", [scaled(data, alpha), graph.constant(beta, graph.dtype(data))])
    if kind == "scaledtanh":
        return scaled(graph.op("Tanh", [scaled(data, beta)]), alpha)
    if kind == "hardsigmoid":
        return graph.op("HardSigmoid", [data], alpha=alpha, beta=beta)
    operator = {"elu": "Elu", "leakyrelu": "LeakyRelu", "thresholdedrelu": "ThresholdedRelu"}[kind]
    return graph.op(operator, [data], alpha=alpha)
