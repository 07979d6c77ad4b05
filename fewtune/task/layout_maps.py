"""Copies weights into the layout in which a candidate reads them.

``RewriteLayout`` leaves a block in the schedule that copies the weights into their new layout. A
measured kernel has no such block and takes weights in the new layout, so a check applies the block
to them. If the layout map loses weights, the schedule is wrong whatever the kernel does. TVM 0.27
loses weights that are read through a flip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi

from fewtune.runtime.tvm import tvm
from fewtune.task.access import NotAffineError, evaluate, shape_of

PREPROC = "meta_schedule.layout_rewrite_preproc"
# Elements at which an axis-by-axis map is compared with the whole one.
_SAMPLED = 64


class LayoutError(Exception):
    """A layout map loses weights, or is not supported; the message says which."""


class _Digit(NamedTuple):
    """A digit of an axis in a mixed radix, and its stride in the new layout."""

    radix: int
    stride: int


def layout_blocks(module: tvm.IRModule) -> dict[int, Any]:
    """The blocks of a scheduled kernel that rewrite layouts, by number of the argument."""
    function = module["main"]
    found: dict[int, Any] = {}

    def take(block: Any) -> None:
        if PREPROC not in (block.annotations or {}):
            return
        for place, parameter in enumerate(function.params):
            if any(region.source.same_as(parameter) for region in block.reads):
                found[place] = block

    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, take))
    return found


def lay_out(block: Any, weights: np.ndarray, into: np.ndarray) -> None:
    """Copy weights into the layout that a block of `layout_blocks` defines.

    `LayoutError` if two weights have the same address, or the block does something else than copy.
    """
    store = block.body
    variables = [axis.var for axis in block.iter_vars]
    extents = [int(axis.dom.extent) for axis in block.iter_vars]
    if not _is_copy(getattr(store, "value", None), variables, extents):
        raise LayoutError("the layout of its weights is no mere copy")

    def address(values: Sequence[Any]) -> Any:
        """The flat address of elements in the new layout."""
        given = dict(zip(variables, values, strict=True))
        flat: Any = 0
        for index, size in zip(store.indices, shape, strict=True):
            flat = flat * size + evaluate(index, given)
        return flat

    try:
        shape = shape_of(store.buffer)
        if prod(shape) != weights.size:
            raise LayoutError(f"its layout has room for {prod(shape)} of {weights.size} weights")
        # Addresses along each axis, with all other indices at zero.
        tables = []
        for axis, extent in enumerate(extents):
            along = address([np.arange(extent) if n == axis else 0 for n in range(len(extents))])
            tables.append(np.broadcast_to(along, (extent,)))
        digits = [_digits(table) for table in tables]
        if all(each is not None for each in digits) and _adds_up(address, tables):
            _transpose(weights, digits, into)  # type: ignore[arg-type]
        else:
            grid = np.meshgrid(*map(np.arange, extents), indexing="ij", sparse=True)
            _scatter(weights, np.broadcast_to(address(grid), extents), into)
    except NotAffineError as fault:
        raise LayoutError(f"the layout of its weights is not known: {fault}") from None


def _is_copy(load: Any, variables: Sequence[Any], extents: Sequence[int]) -> bool:
    """Whether a value is read from a buffer at the block's own indices."""
    if type(load).__name__ != "TensorLoad" or len(load.indices) != len(variables):
        return False
    return all(
        index.same_as(variable) or (extent == 1 and type(index).__name__ == "IntImm")
        for index, variable, extent in zip(load.indices, variables, extents, strict=True)
    )


def _adds_up(address: Callable[[Sequence[Any]], Any], tables: Sequence[np.ndarray]) -> bool:
    """Whether an address is the sum of its axes' addresses; some random elements are tried."""
    random = np.random.default_rng(0)
    values = [random.integers(0, len(table), _SAMPLED) for table in tables]
    for value, table in zip(values, tables, strict=True):
        value[0], value[-1] = 0, len(table) - 1
    added = np.sum([table[value] for value, table in zip(values, tables, strict=True)], axis=0)
    return bool(np.array_equal(np.broadcast_to(address(values), added.shape), added))


def _digits(table: np.ndarray) -> list[_Digit] | None:
    """The digits of an axis, most significant first; None if there are no such digits."""
    extent, unit, found = len(table), 1, []
    while unit < extent:
        stride, rest = int(table[unit]), extent // unit
        steps = table[::unit]
        broken = np.flatnonzero(steps != stride * np.arange(len(steps)))
        radix = int(broken[0]) if len(broken) else rest
        while radix > 1 and rest % radix:
            radix -= 1
        if radix < 2 or rest * unit != extent:
            return None
        found.append(_Digit(radix, stride))
        unit *= radix
    places, unit = np.zeros(extent, dtype=np.int64), 1
    for digit in found:
        places += np.arange(extent) // unit % digit.radix * digit.stride
        unit *= digit.radix
    return found[::-1] if np.array_equal(places, table) else None


def _transpose(weights: np.ndarray, digits: Sequence[Sequence[_Digit]], into: np.ndarray) -> None:
    flat = [digit for axis in digits for digit in axis]
    order = sorted(range(len(flat)), key=lambda place: -flat[place].stride)
    packed = 1
    for place in reversed(order):
        if flat[place].stride != packed:
            raise LayoutError("its layout puts several weights in one place")
        packed *= flat[place].radix
    split = weights.reshape([digit.radix for digit in flat])
    np.copyto(into.reshape([flat[place].radix for place in order]), split.transpose(order))


def _scatter(weights: np.ndarray, places: np.ndarray, into: np.ndarray) -> None:
    if places.min() < 0 or places.max() >= weights.size:
        raise LayoutError("its layout puts weights outside of their buffer")
    is_taken = np.zeros(weights.size, dtype=bool)
    is_taken[places.reshape(-1)] = True
    if not is_taken.all():
        raise LayoutError("its layout puts several weights in one place")
    into.reshape(-1)[places.reshape(-1)] = weights.reshape(-1)
