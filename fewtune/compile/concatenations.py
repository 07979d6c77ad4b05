"""Finds concatenations that need not copy, since their inputs can be computed in their buffer.

A kernel is a concatenation if it is structurally equal to TOPI's for its shapes. Names do not
matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tvm_ffi

from fewtune.runtime.tvm import relax, te, tvm

# Rows of a part have to begin and end at whole vectors.
_ALIGNED_ELEMENTS = 16


class Place(NamedTuple):
    """The place of a tensor: the whole in whose buffer it is, and its first element by axis."""

    whole: relax.Var
    begin: tuple[int, ...]


class Call(NamedTuple):
    """A kernel call: its number among the bindings, the kernel's name, and its arguments."""

    number: int
    kernel: str
    tensors: tuple[relax.Expr, ...]


def concatenations(lowered: tvm.IRModule) -> dict[str, int]:
    """The kernels that only concatenate.

    Parameters
    ----------
    lowered : IRModule
        Fused kernels without schedules.

    Returns
    -------
    axes : dict of int
        By kernel, the axis along which it concatenates.
    """
    axes = {
        symbol.name_hint: _axis_of(function)
        for symbol, function in lowered.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    return {name: axis for name, axis in axes.items() if axis is not None}


class Dataflow:
    """The tensors that ``main`` allocates, and its kernel calls.

    Attributes
    ----------
    all : list of Binding
    allocated : dict of int
        By tensor, the number of the binding that allocates it.
    calls : list of Call
    escaping : set of Var
        Tensors that something other than a kernel uses, such as the caller of ``main``.
    """

    def __init__(self, main: relax.Function) -> None:
        self.all = [binding for block in main.body.blocks for binding in block.bindings]
        self.allocated: dict[relax.Var, int] = {}
        self.calls: list[Call] = []
        self.escaping: set[relax.Expr] = set()
        self._same: dict[relax.Var, relax.Var] = {}
        for number, binding in enumerate(self.all):
            self._add(number, binding.var, binding.value)
        self._add_escaping(main.body.body)

    def root(self, value: relax.Expr) -> relax.Expr:
        """The tensor for which a variable is another name."""
        while value in self._same:
            value = self._same[value]
        return value

    def shape(self, tensor: relax.Expr) -> tuple[int, ...]:
        """Extents of an allocated tensor."""
        return tuple(int(extent) for extent in tensor.ty.shape)

    def _add(self, number: int, name: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Var):
            self._same[name] = value
        elif calls_kernel(value):
            tensors = tuple(self.root(each) for each in value.args)
            self.calls.append(Call(number, value.op.name_hint, tensors))
        elif _allocates(value):
            self.allocated[name] = number
        else:
            self._add_escaping(value)

    def _add_escaping(self, value: relax.Expr) -> None:
        self.escaping.update(self.root(each) for each in relax.analysis.free_vars(value))


def plan(graph: Dataflow, axes: dict[str, int]) -> tuple[list[Call], dict[relax.Expr, Place]]:
    """Choose the calls of concatenations to leave out, and the places of their parts.

    Only kernels may write and read a part. It may be a part of one concatenation only. Its rows
    have to be whole vectors.

    Parameters
    ----------
    graph : Dataflow
    axes : dict of int
        From `concatenations`.

    Returns
    -------
    left_out : list of Call
    places : dict of Place
        By part.
    """
    left_out: list[Call] = []
    inner: dict[relax.Expr, Place] = {}
    for call in graph.calls:
        if call.kernel not in axes:
            continue
        axis = axes[call.kernel]
        *parts, whole = call.tensors
        if whole not in graph.allocated or not _can_be_placed(graph, parts, axis, inner):
            continue
        # After a reshape, the allocated tensor may have another rank than the kernel's argument.
        if not _fits(graph, call, axis):
            continue
        offset = 0
        for part in parts:
            begin = [offset if each == axis else 0 for each in range(len(graph.shape(whole)))]
            inner[part] = Place(whole, tuple(begin))
            offset += graph.shape(part)[axis]
        left_out.append(call)
    return left_out, {tensor: _outermost(tensor, inner) for tensor in inner}


def _can_be_placed(
    graph: Dataflow, parts: Sequence[relax.Expr], axis: int, placed: dict[relax.Expr, Place]
) -> bool:
    """Whether only kernels use some tensors, their rows are whole vectors, and none has a place."""
    return len(set(parts)) == len(parts) and all(
        part in graph.allocated
        and part not in graph.escaping
        and part not in placed
        and math.prod(graph.shape(part)[axis:]) % _ALIGNED_ELEMENTS == 0
        for part in parts
    )


def _fits(graph: Dataflow, call: Call, axis: int) -> bool:
    """Whether the tensors of a concatenation, as allocated, have the extents of its kernel."""
    *parts, whole = [graph.shape(tensor) for tensor in call.tensors]
    return len(whole) > axis and all(
        len(part) == len(whole)
        and (*part[:axis], *part[axis + 1 :]) == (*whole[:axis], *whole[axis + 1 :])
        for part in parts
    )


def _outermost(tensor: relax.Expr, inner: dict[relax.Expr, Place]) -> Place:
    """The final place of a tensor, since its whole may be a part itself."""
    place = inner[tensor]
    while place.whole in inner:
        whole, begin = inner[place.whole]
        begin = tuple(first + further for first, further in zip(begin, place.begin, strict=True))
        place = Place(whole, begin)
    return place


def buffer_of(tensor: relax.Expr, places: dict[relax.Expr, Place]) -> relax.Expr:
    """The tensor whose buffer holds this one: its whole if it is a part, else itself."""
    return places[tensor].whole if tensor in places else tensor


def _axis_of(function: tvm.tirx.PrimFunc) -> int | None:
    """The axis along which a kernel concatenates; None if it does anything else."""
    buffers = list(function.params)
    if len(buffers) < 2 or not all(_has_known_shape(each) for each in buffers):
        return None
    shapes = [[int(extent) for extent in each.shape] for each in buffers]
    *parts, whole = shapes
    # A broadcast has shapes like these, but another rank.
    if any(len(part) != len(whole) for part in parts):
        return None
    for axis, extent in enumerate(whole):
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        if len(others) != 1 or sum(shape[axis] for shape in parts) != extent:
            continue
        given = [te.placeholder(each.shape, str(each.dtype)) for each in buffers[:-1]]
        made = te.create_prim_func([*given, tvm.topi.concatenate(given, axis)])
        if tvm_ffi.structural_equal(made.body, function.body, map_free_vars=True):
            return axis
    return None


def _has_known_shape(value: tvm.tirx.Var) -> bool:
    return isinstance(value, tvm.tirx.Buffer) and all(
        type(extent).__name__ == "IntImm" for extent in value.shape
    )


def calls_kernel(value: relax.Expr) -> bool:
    """Whether an expression is a call of one of the module's own functions."""
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def _allocates(value: relax.Expr) -> bool:
    name = getattr(value.op, "name", None) if isinstance(value, relax.Call) else None
    return name == "relax.builtin.alloc_tensor"
