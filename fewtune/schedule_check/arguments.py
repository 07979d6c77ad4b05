"""Test arguments of a checked kernel: values of either sign that repeat with a prime period.

So a kernel that reads the wrong element reads another value. Weights that repeat every 65,536
elements look the same at many offsets. Sums are kept near one, so that a sigmoid or a comparison
behind a product is not saturated. Large arguments are views of a small table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, isqrt, prod
from typing import Any

import numpy as np
import tvm_ffi

from fewtune.runtime.tvm import tvm
from fewtune.schedule.access import NotAffineError, shape_of
from fewtune.schedule_check.buffers import empty
from fewtune.schedule_check.fills import Fill, numbers
from fewtune.schedule_check.numbers import ROUNDING, UnknownError, held
from fewtune.schedule_check.sizes import fills, length_of

# A prime.
PERIOD = 65_521
# Range of integers that are not indices; zero is not among them, since kernels may divide by them.
_LEAST, _MOST = 1, 9
# Least of positive values, for kernels that compute roots or logarithms.
_POSITIVE_FROM = 0.25
# Elements of a large argument, and about the most of its table that one of its axes takes.
_LARGE, _TABLE = 2**22, 2**20


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    is_read, is_written : bool
        Both are true if neither can be seen.
    """

    shape: tuple[int, ...]
    dtype: str
    is_read: bool
    is_written: bool


@dataclass(frozen=True)
class Signature:
    """Parameters of an unscheduled kernel, and the values that they need.

    Attributes
    ----------
    parameters : list of Parameter
    scales : list of float
        Factor of the values of each parameter.
    most_index : int or None
        Integers are below this, since they are indices; None if the kernel reads no index.
    length : int
        Elements of the longest reduction.
    fills : dict of Fill
        By number of the parameter, those that need special values.
    """

    parameters: list[Parameter]
    scales: list[float]
    most_index: int | None
    length: int
    fills: dict[int, Fill]


def signature(function: Any) -> Signature:
    """Analyse the parameters of an unscheduled kernel.

    Raises
    ------
    UnknownError
        If a shape is not known.
    """
    loads: list[Any] = []
    stores: list[Any] = []
    blocks: list[Any] = []
    tvm_ffi.structural_walk(
        function.body,
        [
            (tvm.ir.expr.TensorLoad, loads.append),
            (tvm.tirx.BufferStore, stores.append),
            (tvm.s_tir.SBlock, blocks.append),
        ],
    )
    read = {load.source for load in loads}
    written = {store.buffer for store in stores}
    parameters = []
    try:
        for parameter in function.params:
            is_read, is_written = parameter in read, parameter in written
            # An accumulation also reads its own output.
            opaque = not (is_read or is_written)
            parameters.append(
                Parameter(
                    tuple(shape_of(parameter)),
                    str(parameter.dtype),
                    opaque or (is_read and not (is_written and _only_own(parameter, blocks))),
                    opaque or is_written,
                )
            )
        most = _most_index([*loads, *stores])
    except NotAffineError as fault:
        raise UnknownError(str(fault)) from None
    lengths = [length_of(block) for block in blocks]
    scales = _scales(function, blocks)
    longest = max(lengths, default=1)
    return Signature(parameters, scales, most, longest, fills(function, scales))


def _only_own(buffer: Any, blocks: list[Any]) -> bool:
    """Whether a buffer is written before any other block reads it."""
    for block in blocks:
        reads = any(region.source.same_as(buffer) for region in block.reads)
        writes = any(region.source.same_as(buffer) for region in block.writes)
        if writes:
            return True
        if reads:
            return False
    return False


def _scales(function: Any, blocks: list[Any]) -> list[float]:
    """For one factor of each sum of products, one over the root of the sum's length."""
    scales = [1.0] * len(function.params)
    for block in blocks:
        store, length = block.body, length_of(block)
        if length < 2 or type(store).__name__ != "BufferStore":
            continue
        product: Any = getattr(store.value, "b", None)
        if type(product).__name__ != "Mul":
            continue
        for factor in (product.b, product.a):
            while type(factor).__name__ == "Cast":
                factor = factor.value
            source = getattr(factor, "source", None)
            places = [p for p, each in enumerate(function.params) if each.same_as(source)]
            if places:
                scales[places[0]] = float(min(scales[places[0]], length**-0.5))
                break
    return scales


def _most_index(accesses: list[Any]) -> int | None:
    """The least extent of an axis that is indexed by a value from memory."""
    found = []
    for access in accesses:
        buffer = access.source if hasattr(access, "source") else access.buffer
        for index, size in zip(access.indices, shape_of(buffer), strict=True):
            inner: list[Any] = []
            tvm_ffi.structural_walk(index, (tvm.ir.expr.TensorLoad, inner.append))
            if inner:
                found.append(size)
    return min(found, default=None)


def drawn(given: Signature, place: int, *, positive: bool) -> np.ndarray:
    """The values of one argument.

    Parameters
    ----------
    given : Signature
    place : int
        Number of the parameter; each has different values.
    positive : bool
        Whether all values are above zero.

    Returns
    -------
    values : numpy.ndarray
        Of the parameter's shape; float16 is held in float32. Large ones overlap themselves.

    Raises
    ------
    UnknownError
        If NumPy lacks the type.
    """
    parameter = given.parameters[place]
    count = prod(parameter.shape)
    dtype = held(parameter.dtype)
    random = np.random.default_rng([place, PERIOD])
    is_plain = place not in given.fills and parameter.dtype == "float32"
    steps = _steps(parameter.shape) if is_plain and count >= _LARGE else []
    length = sum((n - 1) * step for n, step in zip(parameter.shape, steps, strict=False)) + 1
    block: np.ndarray
    if place in given.fills:
        block = numbers(given.fills[place], dtype, PERIOD, random)
    elif parameter.dtype in ROUNDING:
        block = random.random(length if steps else PERIOD, dtype="float32")
        block = block + np.float32(_POSITIVE_FROM) if positive else 2 * block - 1
        block *= np.float32(given.scales[place])
        if parameter.dtype == "float16":
            block = block.astype("float16").astype("float32")
    elif dtype.kind == "b":
        block = random.integers(0, 2, PERIOD)
    elif given.most_index is not None and dtype.itemsize >= 4:
        block = _indices(count, given.most_index, place)
    elif dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        block = random.integers(limits.min, limits.max, PERIOD, endpoint=True)
    else:
        block = random.integers(_LEAST, _MOST, PERIOD)
    if steps:
        strides = [step * dtype.itemsize for step in steps]
        view: np.ndarray = np.ndarray(parameter.shape, dtype, block, strides=strides)
        view.flags.writeable = False
        return view
    made = empty((count,), dtype)
    whole = count // len(block) * len(block)
    made[:whole].reshape(-1, len(block))[:] = block
    made[whole:] = block[: count - whole]
    return made.reshape(parameter.shape)


def _steps(shape: Sequence[int]) -> list[int]:
    """Distances of neighbours on each axis, in a table that a large argument is a view of.

    The table stays in the cache, and 411 MB of weights take no memory of their own. As with a
    period, elements that are equal are far from each other; distances are primes, so that no tile's
    extent leads from one to the other.
    """
    steps: list[int] = []
    whole = 1
    for number, extent in enumerate(reversed(shape)):
        # From ``whole`` on, no two elements are equal.
        step = min(whole, _TABLE // (extent * max(1, number)))
        steps.append(_prime(step) if number else 1)
        whole += (extent - 1) * steps[-1]
    return steps[::-1]


def _prime(least: int) -> int:
    """The first prime from a number on."""
    number = max(2, least)
    while any(number % factor == 0 for factor in range(2, isqrt(number) + 1)):
        number += 1
    return number


def _indices(count: int, most: int, place: int) -> np.ndarray:
    """Indices that are all different, as far as there are so many.

    If two were equal, a kernel that scatters could write either element last.
    """
    step = 7919 + 2 * place
    while gcd(step, most) > 1:
        step += 1
    return np.arange(max(1, count), dtype=np.int64) * step % most
