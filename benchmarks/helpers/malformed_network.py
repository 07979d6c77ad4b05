"""The small network that malformed models are made of, and edits of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

_FLOAT = TensorProto.FLOAT


class Case(NamedTuple):
    """A malformed model.

    Attributes
    ----------
    name : str
    write : callable
        Writes it into a folder and gives the path to check.
    may_pass : bool
        Whether it may be accepted: not every fault leaves a model without a meaning.
    """

    name: str
    write: Callable[[Path], Path]
    may_pass: bool = False


def network() -> ModelProto:
    """A convolution, an activation, a mean and a product, with seeded weights."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="mean"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v", "u"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", _FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", _FLOAT, [1, 5])],
        [weight("w", 8, 3, 3, 3), weight("b", 8), weight("v", 8, 5), weight("u", 5)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def edited(edit: Callable[[ModelProto], None]) -> Callable[[Path], Path]:
    """What writes the network with an edit into a folder."""

    def write(folder: Path) -> Path:
        model = network()
        edit(model)
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


def weight(model: ModelProto, name: str) -> TensorProto:
    """The initialiser of a name."""
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def node(place: int, **changes: object) -> Callable[[ModelProto], None]:
    """Change a node's fields: op_type, domain, inputs, outputs, attributes."""

    def edit(model: ModelProto) -> None:
        node = model.graph.node[place]
        for key, value in changes.items():
            if key in ("input", "output"):
                del getattr(node, key)[:]
                getattr(node, key).extend(value)
            elif key == "attribute":
                del node.attribute[:]
                node.attribute.extend(
                    helper.make_attribute(name, each) for name, each in dict(value).items()
                )
            else:
                setattr(node, key, value)

    return edit
