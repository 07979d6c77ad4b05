"""Sums of the bytes that a product multiplies: of a matrix's rows, of a convolution's windows.

Weights that do not fit signed bytes are signed bytes plus a number, ``moved`` of `Signed`. The
number's part of the product is the number times such a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from onnx import TensorProto

from fewtune.onnx_graph.integers.weights import Signed, Window, sums_fit
from fewtune.onnx_graph.operators.builder import GraphBuilder
from fewtune.onnx_graph.operators.quantized.affine import MOST_OF_BYTE

# float32 holds every whole number up to this.
_EXACT = 2**24


class Totals(Protocol):
    """How a product sums bytes.

    Attributes
    ----------
    operator : str
        Of ONNX, which computes the product.
    attributes : dict
        Of the operator.
    along : tuple of int
        The shape in which one number for each output is broadcast to the sums.
    count : numpy.ndarray
        How many bytes each sum adds; broadcast to the sums.
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
        """For each sum, the sum of the weights that multiply its bytes."""

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether every sum of products, plus ``added``, fits int32."""

    def written(self, graph: GraphBuilder, data: str) -> str:
        """Write the sums of the bytes, in int32; return their name."""


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
        """It has none."""
        return {}

    @property
    def count(self) -> np.ndarray:
        """The same for all sums."""
        return np.array([self.depth])

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """One for each column."""
        return weights.sum(0)

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether every sum of products, plus ``added``, fits int32."""
        return sums_fit(weights.values, (0,), _most(weights, self.depth, added))

    def written(self, graph: GraphBuilder, data: str) -> str:
        """Write the sums of the rows, shape (..., rows, 1)."""
        return graph.reduce("ReduceSum", graph.cast(data, TensorProto.INT32), [self.rank - 1])


@dataclass(frozen=True)
class Windows:
    """Windows of the input of a convolution; its padding counts as zeros.

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
        """The strides, dilations, padding and groups."""
        return self.window.attributes

    @property
    def count(self) -> np.ndarray:
        """Fewer at the borders, where windows reach into the padding."""
        return self.sums(np.ones((1, *self.sizes[1:]), np.int64))

    @property
    def are_exact(self) -> bool:
        """Whether `written` is right: there is one group, and float32 holds the sums exactly."""
        return self.window.groups == 1 and self._depth * MOST_OF_BYTE <= _EXACT

    @property
    def _depth(self) -> int:
        return int(np.prod(self.sizes[1:]))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """One for each filter; with padding, one for each filter and place."""
        return self.window.sums(weights, list(self.shape))

    def fit(self, weights: Signed, added: np.ndarray) -> bool:
        """Whether every sum of products, plus ``added``, fits int32."""
        return sums_fit(weights.values, (1, 2, 3), _most(weights, self._depth, added))

    def written(self, graph: GraphBuilder, data: str) -> str:
        """Write the sums of the windows, shape (batch, 1, height, width).

        They are a convolution of the channels' sums with ones.
        """
        wide = graph.reduce("ReduceSum", graph.cast(data, TensorProto.FLOAT), [1])
        is_one = self.sizes[2:] == (1, 1) and not any(self.window.pads)
        if not is_one or any(step != 1 for step in self.window.strides):
            ones = graph.constant(np.ones((1, 1, *self.sizes[2:]), np.float32))
            wide = graph.op("Conv", [wide, ones], **self.attributes)
        return graph.cast(wide, TensorProto.INT32)


def _most(weights: Signed, depth: int, added: np.ndarray) -> np.ndarray:
    """The most that is added to a sum of products with `Signed.values`."""
    return np.abs(added) + np.abs(weights.moved).max() * depth * MOST_OF_BYTE
