"""Constant quantized weights as signed bytes, and sums of weights that correct for zero points."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

_LEAST, _MOST = -128, 127


@dataclass(frozen=True)
class Dequantized:
    """A dequantized constant: (values - zero) * scale.

    Scale and zero point have one element, or one for each index of ``axis``.
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    def signed(self, axis: int) -> Signed | None:
        """The values less their zero points; None if these are along another axis than outputs."""
        return Signed.of(self.values, self.zero, axis) if self._fits(self.zero, axis) else None

    def scales(self, axis: int) -> np.ndarray | None:
        """One scale, or one for each index of an axis; None if they are along another axis."""
        return self.scale.reshape(-1) if self._fits(self.scale, axis) else None

    def _fits(self, vector: np.ndarray, axis: int) -> bool:
        rank = max(1, self.values.ndim)
        return vector.size == 1 or self.axis % rank == axis % rank


@dataclass(frozen=True)
class Signed:
    """Constant weights as signed bytes, plus a number if they do not fit.

    Attributes
    ----------
    whole : numpy.ndarray
        Weights less their zero points, int64.
    values : numpy.ndarray
        ``whole - moved``, int8.
    moved : numpy.ndarray
        One number, or one for each output; zero if the weights fit int8.
    """

    whole: np.ndarray
    values: np.ndarray
    moved: np.ndarray

    @staticmethod
    def of(values: np.ndarray, zero: np.ndarray, axis: int) -> Signed | None:
        """Weights of bytes with one zero point, or one along an axis; None for other types."""
        if values.dtype not in (np.int8, np.uint8):
            return None
        shape = [1] * values.ndim
        shape[axis] = -1
        zero = np.asarray(zero, np.int64).reshape(shape)
        whole = values.astype(np.int64) - zero
        fits = not whole.size or (whole.min() >= _LEAST and whole.max() <= _MOST)
        middle = 128 if values.dtype == np.uint8 else 0
        moved = np.zeros_like(zero) if fits else middle - zero
        return Signed(whole, (whole - moved).astype(np.int8), moved)

    @property
    def is_moved(self) -> bool:
        """Whether the weights do not fit int8."""
        return bool(np.any(self.moved))

    def transposed(self) -> Signed:
        """The weights of a matrix, transposed."""
        values = np.ascontiguousarray(self.values.T)
        return Signed(self.whole.T, values, np.transpose(self.moved))


@dataclass(frozen=True)
class Window:
    """A 2-D convolution's strides, dilations and padding (top, left, bottom, right)."""

    strides: list[int]
    dilations: list[int]
    pads: list[int]
    group: int

    @staticmethod
    def of(given: dict[str, list[int]]) -> Window:
        """Read a convolution's attributes."""
        defaults = {"strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4}
        parts = {name: list(given.get(name, each)) for name, each in defaults.items()}
        return Window(**parts, group=int(given.get("group", 1)))

    @property
    def attributes(self) -> dict[str, object]:
        """Attributes of ONNX's operator."""
        return asdict(self)

    def sums(self, weights: np.ndarray, shape: list[int]) -> np.ndarray:
        """Sums of the weights whose taps are inside an input of this shape, channels first.

        int64, shape (1, filters, 1, 1), or (1, filters, height, width) with padding.
        """
        taps = weights.astype(np.int64).sum(1)
        if not any(self.pads):
            return taps.sum((1, 2)).reshape(1, -1, 1, 1)
        inside = [self._inside(axis, shape[2 + axis], taps.shape[1 + axis]) for axis in (0, 1)]
        return np.einsum("orc,yr,xc->oyx", taps, *inside)[None]

    def _inside(self, axis: int, extent: int, taps: int) -> np.ndarray:
        """Whether each tap is inside the input, for each output along an axis, (outputs, taps)."""
        first, last = self.pads[axis], self.pads[axis + 2]
        step, reach = self.strides[axis], self.dilations[axis]
        outputs = (extent + first + last - (taps - 1) * reach - 1) // step + 1
        places = np.arange(outputs)[:, None] * step + np.arange(taps) * reach - first
        return ((places >= 0) & (places < extent)).astype(np.int64)
