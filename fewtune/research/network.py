"""A small network of dense layers in NumPy, trained by Adam: enough for an agent of search.

The networks of `fewtune.search` have some thousand weights and see some hundred rows, so that no
framework is needed to train them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FIRST, _SECOND, _SMALL = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma and Ba 2015) over a list of arrays, changed in place."""

    def __init__(self, parameters: Sequence[np.ndarray], rate: float) -> None:
        self._parameters = list(parameters)
        self.rate = rate
        self._first = [np.zeros_like(each) for each in self._parameters]
        self._second = [np.zeros_like(each) for each in self._parameters]
        self._steps = 0

    def step(self, gradients: Sequence[np.ndarray]) -> None:
        """Go down along gradients, one array for each parameter."""
        self._steps += 1
        # Both means begin at zero: without this they would be too small at first.
        first_bias, second_bias = 1 - _FIRST**self._steps, 1 - _SECOND**self._steps
        for value, gradient, first, second in zip(
            self._parameters, gradients, self._first, self._second, strict=True
        ):
            first += (1 - _FIRST) * (gradient - first)
            second += (1 - _SECOND) * (gradient**2 - second)
            value -= self.rate * (first / first_bias) / (np.sqrt(second / second_bias) + _SMALL)


class Dense:
    """Layers with tanh between them.

    Parameters
    ----------
    sizes : sequence of int
        Of the input, of each hidden layer, of the output.
    random : Generator
        Of the weights to begin with.
    rate : float
        Of Adam.
    """

    def __init__(self, sizes: Sequence[int], random: np.random.Generator, rate: float) -> None:
        self.parameters: list[np.ndarray] = []
        for size, following in zip(sizes, sizes[1:], strict=False):
            self.parameters.append(random.normal(0, size**-0.5, (size, following)))
            self.parameters.append(np.zeros(following))
        # The last layer begins small, so that at first no action is preferred.
        self.parameters[-2] *= 0.1
        self._adam = Adam(self.parameters, rate)

    def forward(self, rows: np.ndarray) -> list[np.ndarray]:
        """The output of each layer, the input first, (rows, size) each."""
        given = [rows]
        last = len(self.parameters) // 2 - 1
        for layer in range(last + 1):
            weights, bias = self.parameters[2 * layer : 2 * layer + 2]
            found = given[-1] @ weights + bias
            given.append(found if layer == last else np.tanh(found))
        return given

    def train(self, given: list[np.ndarray], gradient: np.ndarray) -> None:
        """One step of Adam, given `forward` and the loss's gradient by the output."""
        gradients: list[np.ndarray] = []
        for layer in reversed(range(len(self.parameters) // 2)):
            gradients = [given[layer].T @ gradient, gradient.sum(axis=0), *gradients]
            if layer:
                gradient = (gradient @ self.parameters[2 * layer].T) * (1 - given[layer] ** 2)
        self._adam.step(gradients)
