"""Resampling of axes: each result is a weighted sum of elements.

Coordinates are computed in float32, in onnxruntime's order of operations. If two neighbours are
about equally near, the last bit of a coordinate decides which of them is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

_HALF = np.float32(0.5)
# onnxruntime 1.31 rounds a coordinate as a half if it is so near to one.
_SNAPPED_ULPS = 2


@dataclass(frozen=True)
class Resampling:
    """How the axes of a tensor are resized.

    Attributes
    ----------
    axes : list of int
    scales : list of float
        By axis. If sizes were given, the ratio of the extents.
    roi : list of float
        The region of interest, as parts of the extents: the beginning of each axis, then the end of
        each.
    mode : {"nearest", "linear", "cubic"}
    coordinates : str
        ONNX's ``coordinate_transformation_mode``.
    rounding : str
        ONNX's ``nearest_mode``, or ``simple`` for the operator sets before 11.
    cubic_coefficient : float
    exclude_outside, antialias : bool
    extrapolation : float
        The value outside of the region, for ``tf_crop_and_resize``.
    """

    axes: list[int]
    scales: list[float]
    roi: list[float]
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0

    @property
    def text(self) -> str:
        """The plan as JSON, for an attribute of an operator."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The plan from its `text`."""
        return cls(**json.loads(text))

    def taps(self, position: int, extent: int, resized: int) -> Taps:
        """The elements and weights that each element of a resized axis sums up.

        Parameters
        ----------
        position : int
            Of the axis in `axes`.
        extent, resized : int
            The extents of the axis before and after.
        """
        scale = np.float32(self.scales[position])
        begin, end = (np.float32(self.roi[position + i * len(self.axes)]) for i in (0, 1))
        coordinates = np.arange(resized, dtype=np.float32)
        is_copied = extent == resized and self.antialias
        if scale != 1 and not is_copied:
            coordinates = _COORDINATES[self.coordinates](
                coordinates, scale, np.float32(resized), np.float32(extent), (begin, end)
            ).astype(np.float32)
        inside = np.ones(resized, bool)
        if self.coordinates == "tf_crop_and_resize":
            inside = (coordinates >= 0) & (coordinates <= extent - 1)
        if self.mode == "nearest":
            places, weights = self._nearest(coordinates, scale)
        elif self.antialias and not is_copied:
            places, weights = self._antialiased(coordinates, scale, extent)
        elif self.mode == "linear":
            places, weights = _linear(coordinates, extent)
        else:
            places, weights = self._cubic(coordinates, extent)
        read = np.clip(places, 0, extent - 1).astype(np.int32)
        if not self.antialias or is_copied:
            return Taps(read, weights, inside)
        weights = _merged(read, weights)
        return Taps(read, weights, inside, bool((weights == 0).any()))

    def _nearest(self, coordinates: np.ndarray, scale: np.float32) -> tuple[np.ndarray, np.ndarray]:
        if self.rounding == "simple":
            places = np.ceil(coordinates) if scale < 1 else np.trunc(coordinates)
        else:
            places = _ROUNDINGS[self.rounding](coordinates)
        return places[:, None], np.ones((len(coordinates), 1), np.float32)

    def _cubic(self, coordinates: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
        base = np.floor(coordinates)
        distance = (coordinates - base).astype(np.float32)
        offsets = np.arange(-1, 3, dtype=np.float32)
        places = base[:, None] + offsets
        weights = _cubic_weight(distance[:, None] - offsets, self.cubic_coefficient)
        if self.exclude_outside:
            weights = _normalised(np.where((places >= 0) & (places < extent), weights, 0))
        return places, weights

    def _antialiased(
        self, coordinates: np.ndarray, scale: np.float32, extent: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Filters as in Pillow: stretched if the axis shrinks, and normalised to a sum of 1."""
        stretch = np.maximum(1 / scale, np.float32(1))
        reach = np.float32(2.0 if self.mode == "cubic" else 1.0) * stretch
        centre = coordinates + _HALF
        first, last = np.floor(centre - reach + _HALF), np.floor(centre + reach + _HALF)
        if self.exclude_outside:
            first, last = np.clip(first, 0, extent), np.clip(last, 0, extent)
        places = first[:, None] + np.arange(max(1, int((last - first).max())), dtype=np.float32)
        distance = (places - centre[:, None] + _HALF) / stretch
        if self.mode == "cubic":
            weights = _cubic_weight(distance, self.cubic_coefficient)
        else:
            weights = np.maximum(0, 1 - np.abs(distance))
        return places, _normalised(np.where(places < last[:, None], weights, 0))


@dataclass(frozen=True)
class Taps:
    """Elements and weights along one axis.

    Attributes
    ----------
    places : array of int32, shape (resized, taps)
        Indices of the elements.
    weights : array of float32, shape (resized, taps)
    inside : array of bool, shape (resized,)
        False if the result is the extrapolation value.
    has_gaps : bool
        Whether a weight of zero means that there is no element, which may be infinite.
    """

    places: np.ndarray
    weights: np.ndarray
    inside: np.ndarray
    has_gaps: bool = False

    @property
    def count(self) -> int:
        """Terms of each sum."""
        return self.places.shape[1]

    def quotient(self) -> tuple[int, int] | None:
        """Integers ``m`` and ``d`` if each result ``i`` is element ``i * m // d``; else None."""
        if self.count != 1:
            return None
        resized = len(self.places)
        read = self.places[:, 0]
        at = np.arange(resized)
        factor = int(np.argmax(read > 0)) or resized
        for multiplier, divisor in ((1, factor), (int(read[min(1, resized - 1)]), 1)):
            if np.array_equal(at * multiplier // divisor, read):
                return multiplier, divisor
        return None


def _linear(coordinates: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    clamped = np.clip(coordinates, 0, np.float32(extent - 1))
    low = np.minimum(np.trunc(clamped), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    far, near = np.abs(clamped - low), np.abs(clamped - high)
    far, near = np.where(low == high, _HALF, far), np.where(low == high, _HALF, near)
    return np.stack([low, high], 1), np.stack([near, far], 1).astype(np.float32)


def _cubic_weight(distance: np.ndarray, coefficient: float) -> np.ndarray:
    """The cubic convolution kernel of Keys (1981)."""
    a, x = coefficient, np.abs(distance)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0)).astype(np.float32)


def _normalised(weights: np.ndarray) -> np.ndarray:
    total = weights.sum(axis=1, keepdims=True)
    return (weights / np.where(total == 0, 1, total)).astype(np.float32)


def _merged(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One weight for each element that is read: at its first place, what all its places have."""
    first = (places[:, :, None] == places[:, None, :]).argmax(axis=2)
    merged = np.zeros_like(weights)
    np.add.at(merged, (np.arange(len(places))[:, None], first), weights)
    return merged


def _prefer_ceil(coordinates: np.ndarray) -> np.ndarray:
    """The nearest index; of two equally near ones, the upper one."""
    return np.floor(_snapped(coordinates) + 0.5)


def _prefer_floor(coordinates: np.ndarray) -> np.ndarray:
    """The nearest index; of two equally near ones, the lower one."""
    return np.ceil(_snapped(coordinates) - 0.5)


def _snapped(coordinates: np.ndarray) -> np.ndarray:
    """Coordinates in float64; those within a few roundings of a half are that half."""
    wide = coordinates.astype(np.float64)
    halves = np.floor(wide) + 0.5
    is_half = np.abs(wide - halves) <= _SNAPPED_ULPS * np.spacing(np.abs(coordinates))
    return np.where(is_half, halves, wide)


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": _prefer_floor,
    "round_prefer_ceil": _prefer_ceil,
    "floor": np.floor,
    "ceil": np.ceil,
}

_Range = tuple[np.float32, np.float32]
_Coordinates = Callable[[np.ndarray, np.float32, np.float32, np.float32, _Range], np.ndarray]


def _half_pixel(
    places: np.ndarray, scale: np.float32, _resized: np.float32, _extent: np.float32, _roi: _Range
) -> np.ndarray:
    return (places + _HALF) / scale - _HALF


def _pytorch_half_pixel(
    places: np.ndarray, scale: np.float32, resized: np.float32, extent: np.float32, roi: _Range
) -> np.ndarray:
    return _half_pixel(places, scale, resized, extent, roi) if resized > 1 else places * 0


def _half_pixel_symmetric(
    places: np.ndarray, scale: np.float32, resized: np.float32, extent: np.float32, _roi: _Range
) -> np.ndarray:
    adjustment = resized / (scale * extent)
    offset = extent / 2 * (1 - adjustment)
    # onnxruntime computes this sum in double precision.
    return offset + (places.astype(np.float64) + 0.5) / np.float64(scale) - 0.5


def _align_corners(
    places: np.ndarray, _scale: np.float32, resized: np.float32, extent: np.float32, _roi: _Range
) -> np.ndarray:
    return places * 0 if resized == 1 else places * (extent - 1) / (resized - 1)


def _asymmetric(
    places: np.ndarray, scale: np.float32, _resized: np.float32, _extent: np.float32, _roi: _Range
) -> np.ndarray:
    return places / scale


def _half_pixel_for_nearest(
    places: np.ndarray, scale: np.float32, _resized: np.float32, _extent: np.float32, _roi: _Range
) -> np.ndarray:
    return (places + _HALF) / scale


def _crop_and_resize(
    places: np.ndarray, _scale: np.float32, resized: np.float32, extent: np.float32, roi: _Range
) -> np.ndarray:
    begin, end = roi
    if resized > 1:
        return begin * (extent - 1) + places * (end - begin) * (extent - 1) / (resized - 1)
    return places * 0 + _HALF * (begin + end) * (extent - 1)


_COORDINATES: dict[str, _Coordinates] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_half_pixel_for_nn": _half_pixel_for_nearest,
    "tf_crop_and_resize": _crop_and_resize,
}
KNOWN_COORDINATES = frozenset(_COORDINATES)
