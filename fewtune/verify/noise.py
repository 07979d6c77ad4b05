"""Measures the noise of a model's outputs: how far rounding may move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto

from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.verify.comparison import PEAK, Expected, is_graded
from fewtune.verify.jitter import jittered
from fewtune.verify.session import OnnxruntimeSession

RUNS = 6
# Least noise of an element, relative to its magnitude, by bytes of a float.
_OWN_SIZE = {2: 2.0**-11, 4: 2.0**-21, 8: 2.0**-49}
# Exponentials underflow near these values; implementations differ in where exactly.
_SMALLEST = {2: 2.0**-24, 4: 2.0**-120, 8: 2.0**-1000}

# An alternative result that exceeds its allowance by this factor is a fault, not noise.
_CONTRADICTION = 100.0
# Movements are summed in blocks of so many elements, whose doubles stay in the processor's cache.
_BLOCK = 2**15


class NoiseMeter:
    """Measures the noise of a model's outputs, for one draw of inputs after the other.

    Parameters
    ----------
    model : ModelProto or LightModel
        With static shapes. Fewer nodes are faster: a simplified model will do.
    threads : int
    steps : dict of float
        By output, the quantization step of those that are quantized last.

    Attributes
    ----------
    contradicted : list of str
        Outputs of the last draw that an equally valid computation contradicts.

    Notes
    -----
    A few runs do not show how far every element may move: one that ReLU has set to zero may be just
    above it elsewhere, and one in a Fourier transform may be zero since large terms cancel. So the
    mean square of the noise over the last two axes, such as those of an image's channel, is added
    to the square of each element's own. If values are quantized inside, an element moves when one
    of them takes another step, in one run and not in the next six: then the mean is over all axes.
    """

    def __init__(
        self, model: ModelProto | LightModel, threads: int, steps: Mapping[str, float]
    ) -> None:
        given, arrays = light(model)
        self._moving = jittered(given)
        self._session = OnnxruntimeSession(LightModel(self._moving.model, arrays), threads)
        self._names = [value.name for value in given.graph.output]
        self._steps = steps
        self.contradicted: list[str] = []

    def expected(
        self,
        feeds: dict[str, np.ndarray],
        values: Sequence[np.ndarray],
        others: Sequence[Sequence[np.ndarray]],
        seed: int,
        runs: int = RUNS,
    ) -> list[Expected]:
        """Outputs with their noise, in the order of ``values``.

        Parameters
        ----------
        feeds : dict of arrays
        values : sequence of arrays
            The reference's outputs.
        others : sequence of outputs
            Outputs for the same inputs that were computed in other valid ways. Those that are far
            off do not count as noise; ``contradicted`` names them.
        seed : int
        runs : int
            How often values are moved.
        """
        self.contradicted = []
        # Distances are from the unmoved outputs of the jittered model, not from the reference: a
        # difference between the two models is a fault, not noise.
        still = self._session.run({**feeds, **self._moving.still()})
        movements = [
            _Movement(np.asarray(middle if np.shape(middle) == np.shape(value) else value))
            for middle, value in zip(still, values, strict=True)
        ]
        for more in self._moving.feeds(seed, runs):
            outputs = self._session.run({**feeds, **more})
            for movement, moved in zip(movements, outputs, strict=True):
                movement.add(np.asarray(moved))
        found = []
        for index, value in enumerate(map(np.asarray, values)):
            noise, name = movements[index].size(), self._names[index]
            for other in others:
                away = _Movement(value)
                away.add(np.asarray(other[index]))
                most = _CONTRADICTION * PEAK * (noise + _floor(value, 0.0))
                is_float = value.dtype.kind == "f" and not self._moving.takes_steps
                if is_float and np.any(away.size() > most):
                    self.contradicted.append(name)
                else:
                    noise = np.fmax(noise, away.size())
            if is_graded(value.dtype) and value.size:
                noise = np.sqrt(np.square(noise) + self._typical(np.square(noise)))
            noise += _floor(value, self._steps.get(name, 0.0))
            found.append(Expected(name, value, noise.astype(np.float32)))
        return found

    def _typical(self, squares: np.ndarray) -> np.ndarray:
        whole = np.mean(squares)
        if self._moving.takes_steps or squares.ndim < 3:
            return whole
        planes = np.mean(squares, axis=(-2, -1), keepdims=True)
        # A channel in which nothing moves may lie below ReLU's zero as a whole.
        return np.where(planes > 0, planes, whole)


class _Movement:
    """How far an output moves in a few runs: its mean square, or its largest for other types."""

    def __init__(self, middle: np.ndarray) -> None:
        self._middle, self._is_mean = middle, is_graded(middle.dtype)
        self._sums, self._counts = np.zeros(middle.size), np.zeros(middle.size, np.uint8)

    def add(self, moved: np.ndarray) -> None:
        """Add the outputs of one run; those of another shape say nothing."""
        if moved.shape != self._middle.shape:
            return
        ours, theirs = moved.reshape(-1), self._middle.reshape(-1)
        for start in range(0, ours.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            with np.errstate(invalid="ignore", over="ignore"):
                distance = np.abs(np.subtract(ours[part], theirs[part], dtype=np.float64))
                finite = np.isfinite(distance)
                distance[~finite] = 0.0
                if self._is_mean:
                    self._sums[part] += np.square(distance)
                    self._counts[part] += finite
                else:
                    np.maximum(self._sums[part], distance, out=self._sums[part])

    def size(self) -> np.ndarray:
        """Root mean square of each element's finite distances, or the largest one."""
        found = self._sums
        if self._is_mean:
            found = np.sqrt(found / np.maximum(self._counts, 1))
        return found.reshape(self._middle.shape)


def _floor(value: np.ndarray, step: float) -> np.ndarray:
    """Least noise of each element: its own rounding, and its quantization step."""
    if value.dtype.kind != "f":
        return np.full(value.shape, 1.01 / PEAK if is_graded(value.dtype) else 0.0)
    size = value.dtype.itemsize
    magnitude = np.nan_to_num(np.abs(value.astype(np.float64)), posinf=0.0)
    return magnitude * _OWN_SIZE[size] + _SMALLEST[size] + 1.01 * step / PEAK
