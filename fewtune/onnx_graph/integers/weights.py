"""Constant quantised weights as signed bytes, and sums of weights that correct for zero points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LEAST, _MOST = -128, 127
_MOST_DATA = 255
_MOST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Dequantised:
    """A dequantised constant: (values - zero) * scale along an axis.

    Attributes
    ----------
    values, scale, zero : numpy.ndarray
        ``scale`` and ``zero`` have one element, or one for each index of the axis.
    axis : int
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    axis: int

    def centred(self) -> np.ndarray | None:
        """The values less their zero points as int8; None if they do not fit."""
        return as_signed(self.values, self._along(self.zero))

    def scales(self, axis: int) -> np.ndarray | None:
        """One scale, or one for each index of an axis; None if they are along another axis."""
        if self.scale.size == 1:
            return self.scale.reshape(-1)
        if self.axis % self.values.ndim != axis % self.values.ndim:
            return None
        return self.scale.reshape(-1)

    def _along(self, vector: np.ndarray) -> np.ndarray:
        if vector.size == 1:
            return vector.reshape(())
        shape = [1] * self.values.ndim
        shape[self.axis] = -1
        return vector.reshape(shape)


def as_signed(values: np.ndarray, zero: np.ndarray | int) -> np.ndarray | None:
    """Values less their zero points as int8; None if they do not fit."""
    if values.dtype not in (np.int8, np.uint8):
        return None
    whole = values.astype(np.int32) - np.asarray(zero, np.int32)
    if whole.size and (whole.min() < _LEAST or whole.max() > _MOST):
        return None
    return whole.astype(np.int8)


def sums_fit(weights: np.ndarray, axes: tuple[int, ...], added: np.ndarray) -> bool:
    """Whether all sums of products with unsigned bytes fit int32."""
    most = np.abs(weights.astype(np.int64)).sum(axes) * 2 * _MOST_DATA
    return bool(most.max(initial=0) + np.abs(added.astype(np.int64)).max(initial=0) < _MOST_SUM)


@dataclass(frozen=True)
class Window:
    """A 2-D convolution's strides, dilations and padding (top, left, bottom, right)."""

    strides: list[int]
    dilations: list[int]
    pads: list[int]
    groups: int

    @staticmethod
    def of(given: dict[str, object], shape: list[int], kernel: list[int]) -> Window:
        """Read a convolution's attributes; ``auto_pad`` is written out.

        Parameters
        ----------
        given : dict
            The attributes.
        shape : list of int
            Shape of the input, channels first.
        kernel : list of int
            Height and width.
        """
        strides = [int(each) for each in given.get("strides", [1, 1])]
        dilations = [int(each) for each in given.get("dilations", [1, 1])]
        pads = [int(each) for each in given.get("pads", [0, 0, 0, 0])]
        automatic = given.get("auto_pad", b"NOTSET").decode()
        if automatic == "VALID":
            pads = [0, 0, 0, 0]
        elif automatic.startswith("SAME"):
            for axis in (0, 1):
                extent, step = shape[2 + axis], strides[axis]
                reach = (kernel[axis] - 1) * dilations[axis] + 1
                whole = max(0, (-(-extent // step) - 1) * step + reach - extent)
                first = whole // 2 if automatic == "SAME_UPPER" else whole - whole // 2
                pads[axis], pads[axis + 2] = first, whole - first
        return Window(strides, dilations, pads, int(given.get("group", 1)))

    @property
    def attributes(self) -> dict[str, object]:
        """Attributes of ONNX's operator."""
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "group": self.groups,
        }

    def sums(self, weights: np.ndarray, shape: list[int]) -> np.ndarray:
        """Sums of the weights whose taps are inside the input.

        Parameters
        ----------
        weights : numpy.ndarray
            (filters, channels, rows, columns).
        shape : list of int
            Shape of the input, channels first.

        Returns
        -------
        sums : numpy.ndarray
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
