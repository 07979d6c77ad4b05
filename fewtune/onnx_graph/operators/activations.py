"""Activation functions that fused and recurrent operators name in an attribute."""

from __future__ import annotations

from collections.abc import Callable

from fewtune.onnx_graph.operators.builder import GraphBuilder

Activation = Callable[[GraphBuilder, str], str]

_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", "Identity")
# Defaults of alpha and beta.
_WITH_PARAMETERS = {
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
}
_BY_LOWER_CASE = {name.lower(): name for name in (*_PLAIN, *_WITH_PARAMETERS)}


def activation(name: str, alphas: list[float], betas: list[float]) -> Activation | None:
    """The activation of a name, in any case; None if it is unknown.

    Its parameters are taken from the front of the lists, in place.
    """
    operator = _BY_LOWER_CASE.get(name.lower())
    if operator is None:
        return None
    given = dict(_WITH_PARAMETERS.get(operator, {}))
    for parameter, values in (("alpha", alphas), ("beta", betas)):
        if parameter in given and values:
            given[parameter] = values.pop(0)
    return lambda graph, data: graph.op(operator, [data], **given)
