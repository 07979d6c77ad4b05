"""What the bytes that a product sums add up to: rows of a matrix, windows of a plane.

Weights that are signed bytes and a number beside them need it: the number times this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.integers.weights import Signed, Window, sums_fit
from fewtune.onnx_graph.operators.builder import GraphBuilder

_MOST_OF_BYTE = 255
# Up to here float32 has every whole number.
_EXACT = 2**24


class Totals(Protocol):
    """How a product sums bytes.

    Attributes
    ----------
    operator : str
    attributes : dict
        Of the operator.
    along : tuple of int
        The shape of a number for each output, against the sums.
    count : numpy.ndarray
        How many bytes each sum is of, against the sums.
    """

    @property
    def operator(self) -> str: ...

    @property
    def attributes(self) -> dict[str, object]: ...

    @property
    def along(self) -> tuple[int, ...]: ...

    @property
    def count(self) -> np.ndarray: ...

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Sums of the weights that each sum has."""

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether no sum can leave int32."""

    def written(self, graph: GraphBuilder, data: str) -> str:
        """The sums of the bytes themselves, in int32."""


@dataclass(frozen=True)
class Rows:
    """Rows of the first matrix of a product.

    Attributes
    ----------
    rank : int
        Of the data.
    depth : int
    """

    rank: int
    depth: int
    operator = "MatMulInteger"
    along = (-1,)

    @property
    def attributes(self) -> dict[str, object]:
        """None."""
        return {}

    @property
    def count(self) -> np.ndarray:
        """The same for all."""
        return np.array([self.depth])

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """One for each column."""
        return weights.sum(0)

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether no sum can leave int32."""
        return sums_fit(weights.values, (0,), _most(weights, self.depth, added))

    def written(self, graph: GraphBuilder, data: str) -> str:
        """Shape (..., rows, 1)."""
        return graph.reduce("ReduceSum", graph.cast(data, TensorProto.INT32), [self.rank - 1])


@dataclass(frozen=True)
class Windows:
    """Windows of the input of a convolution; what lies outside counts nothing.

    Attributes
    ----------
    window : Window
    shape : tuple of int
        Of the data, channels first.
    sizes : tuple of int
        Of the weights.
    """

    window: Window
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    operator = "ConvInteger"
    along = (1, -1, 1, 1)

    @property
    def attributes(self) -> dict[str, object]:
        """As ONNX has them."""
        return self.window.attributes

    @property
    def count(self) -> np.ndarray:
        """Fewer at the borders."""
        return self.sums(np.ones((1, *self.sizes[1:]), np.int64))

    @property
    def are_exact(self) -> bool:
        """Whether the bytes' sums can be written: of one group, within what floats hold."""
        return self.window.groups == 1 and self._depth * _MOST_OF_BYTE <= _EXACT

    @property
    def _depth(self) -> int:
        return int(np.prod(self.sizes[1:]))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """One for each filter; with padding, for each place, too."""
        return self.window.sums(weights, list(self.shape))

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether no sum can leave int32."""
        return sums_fit(weights.values, (1, 2, 3), _most(weights, self._depth, added))

    def written(self, graph: GraphBuilder, data: str) -> str:
        """Shape (batch, 1, height, width): of the channels' sums, a convolution with ones."""
        wide = graph.reduce("ReduceSum", graph.cast(data, TensorProto.FLOAT), [1])
        is_one = self.sizes[2:] == (1, 1) and not any(self.window.pads)
        if not is_one or any(step != 1 for step in self.window.strides):
            ones = graph.constant(np.ones((1, 1, *self.sizes[2:]), np.float32))
            wide = graph.op("Conv", [wide, ones], **self.attributes)
        return graph.cast(wide, TensorProto.INT32)


def _most(weights: Signed, depth: int, added: np.ndarray) -> np.ndarray:
    """The most that is added to the sums of the bytes' products."""
    return np.abs(added) + np.abs(weights.moved).max() * depth * _MOST_OF_BYTE
