"""The small network that malformed models are made of, and edits of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto, helper

from tests.made.onnx_text import model_of


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
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 5), "u": (5,)}
    return model_of(
        """(float[1,3,8,8] x) => (float[1,5] y) {
            c = Conv <pads = [1, 1, 1, 1]> (x, w, b)
            r = Relu (c)
            p = GlobalAveragePool (r)
            f = Flatten (p)
            y = Gemm (f, v, u)
        }""",
        **{name: generator.normal(size=s).astype(np.float32) for name, s in shapes.items()},
    )


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
