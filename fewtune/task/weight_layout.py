"""Weights in the layout that their kernel's schedule reads them in.

A weight is constant, so its layout is the compiler's to choose: MetaSchedule's ``RewriteLayout``
permutes it to the order of the schedule's loops, and each register tile then streams through
memory instead of stepping over it. `mark` says which arguments are free; `fold` permutes the
constants once, while the model is compiled.

``RewriteLayout`` leaves a block in the schedule that copies the weights into their new layout. A
measured kernel has no such block and takes weights in the new layout, so a check applies the block
to them (`addresses_of`). If the block loses weights, the schedule is wrong whatever the kernel
does. TVM 0.27 loses weights that are read through a flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from fewtune.runtime.tvm import relax, tvm
from fewtune.task.access import NotAffineError, evaluate, nodes_of, shape_of
from fewtune.task.analysis import kernel_calls, model_functions
from fewtune.tvm_compat.values import is_constant, known_array

PREPROC = "meta_schedule.layout_rewrite_preproc"
FREE = "layout_free_buffers"
_ORDERED_AXES = 2
_REDUCTION = tvm.tirx.IterVar.CommReduce


class LayoutError(Exception):
    """A layout map loses weights, or is not supported; the message says which."""


def free_places(function: tvm.tirx.PrimFunc) -> list[int]:
    """Numbers of a kernel's arguments that are weights, as `mark` noted."""
    return [int(place) for place in (function.attrs or {}).get(FREE, ())]


def mark(lowered: tvm.IRModule) -> tvm.IRModule:
    """Mark the arguments of kernels that are weights wherever the kernel is called.

    TVM's own pass (``AttachAttrLayoutFreeBuffers``) marks every constant. Here only constants of
    two axes or more are marked, since a bias has only one order, and only if `reads_straight`.

    Parameters
    ----------
    lowered : IRModule
        Fused kernels, called with constants.

    Returns
    -------
    marked : IRModule
        Kernels carry ``layout_free_buffers``, the numbers of those arguments.
    """
    free: dict[str, set[int]] = {}
    for name, arguments in kernel_calls(lowered):
        constant = {place for place, given in enumerate(arguments) if _is_weight(given)}
        free[name] = free.get(name, constant) & constant
    marked = tvm.IRModule(dict(lowered.functions_items()), attrs=lowered.attrs)
    for name, places in free.items():
        function = lowered[name]
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        given = function.params
        if straight := sorted(p for p in places if reads_straight(function, given[p])):
            marked.update_func(lowered.get_global_var(name), function.with_attr(FREE, straight))
    return marked


def reads_straight(function: tvm.tirx.PrimFunc, buffer: object) -> bool:
    """Whether a kernel reads an argument in one place only, each element by its own axes.

    ``RewriteLayout`` derives the new layout from the loops around a read. It assumes that they
    visit every element of the buffer. For a slice, or one column of many, it makes a layout without
    room for the rest; with a flipped axis it may lose another axis (TVM 0.27). So every index of
    the read has to be an axis of its block, each axis once, over the whole extent. For an extent of
    1 it may be 0.

    A block that only moves or converts elements may be computed inside the block that reads its
    result. So its result has to be read in the same way. A counterexample is a table of indices
    that is transposed, and then read by a gather twice for each element.

    Parameters
    ----------
    function : PrimFunc
        Not scheduled.
    buffer : Buffer
        The argument, or the result of one of the kernel's blocks.
    """
    if not isinstance(buffer, tvm.tirx.Buffer):
        return False
    reads = [
        (block, region)
        for block in nodes_of(function.body, tvm.s_tir.SBlock)
        for region in block.reads
        if region.source.same_as(buffer)
    ]
    if len(reads) != 1:
        return False
    block, region = reads[0]
    extents = {axis.var: axis.dom.extent for axis in block.iter_vars if _is(axis.dom.min, 0)}
    used: set[tvm.tirx.Var] = set()
    for index, extent in zip(region.region, buffer.shape, strict=True):
        if not _is(index.extent, 1):
            return False
        if _is(index.min, 0) and _is(extent, 1):
            continue
        if index.min in used or not _is(extents.get(index.min), extent):
            return False
        used.add(index.min)
    if any(axis.iter_type == _REDUCTION for axis in block.iter_vars):
        return True
    return all(
        any(written.source.same_as(given) for given in function.params)
        or reads_straight(function, written.source)
        for written in block.writes
    )


def _is(value: object, wanted: object) -> bool:
    """Whether a number in TensorIR is known, and equal to another."""
    known = [int(each.value) if hasattr(each, "value") else each for each in (value, wanted)]
    return known[0] is not None and isinstance(known[0], int) and known[0] == known[1]


def without_layout_block(module: tvm.IRModule) -> tvm.IRModule:
    """A scheduled kernel that takes its weights as `fold` lays them out."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    # The block's loops stay, without a body: TVM removes them when it compiles.
    left = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)["main"]
    # Made anew, the kernel has the type of its new arguments.
    return tvm.IRModule({"main": left.with_body(left.body)})


def fold(scheduled: tvm.IRModule) -> tvm.IRModule:
    """Permute the weights of a scheduled model, and remove the permutations from its kernels.

    TVM's own passes build a kernel for each weight and run it: 9 s for a network of 257.

    Parameters
    ----------
    scheduled : IRModule
        Some of its kernels begin with the block that ``RewriteLayout`` inserts.

    Returns
    -------
    folded : IRModule
        The same model, with constants in the order in which its kernels read them.
    """
    kept, laid_out = dict(scheduled.functions_items()), {}
    for variable, function in scheduled.functions_items():
        alone = tvm.IRModule({"main": function})
        if isinstance(function, tvm.tirx.PrimFunc) and (blocks := layout_blocks(alone)):
            laid_out[variable.name_hint] = without_layout_block(alone)["main"], blocks
            del kept[variable]
    # A call needs its kernel's type, which a builder knows.
    builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=scheduled.attrs))
    calls = {
        name: (builder.add_func(kernel.with_attr("global_symbol", name), name), blocks)
        for name, (kernel, blocks) in laid_out.items()
    }
    folding = _Folding(calls)
    for name in model_functions(scheduled):
        builder.update_func(scheduled.get_global_var(name), folding.visit_expr(scheduled[name]))
    return builder.get()


@relax.expr_functor.mutator
class _Folding(relax.PyExprMutator):
    """Calls other kernels, with weights laid out by the blocks of `layout_blocks`."""

    def __init__(self, calls: dict[str, tuple[tvm.ir.GlobalVar, dict[int, Any]]]) -> None:
        super().__init__()
        self._calls = calls
        # Layers are alike. Of more kernels, addresses would take as much as all weights.
        self._addresses = lru_cache(maxsize=8)(addresses_of)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Lay out the weights of a kernel's call."""
        callee = call.args[0] if call.args else None
        if not isinstance(callee, tvm.ir.GlobalVar) or callee.name_hint not in self._calls:
            return super().visit_call_(call)
        kernel, blocks = self._calls[callee.name_hint]
        arguments = [self.visit_expr(each) for each in call.args[1].fields]
        for place, block in blocks.items():
            weights = known_array(arguments[place])
            into = np.empty(shape_of(block.body.buffer), weights.dtype)
            into.reshape(-1)[self._addresses(block, weights.size)] = weights.reshape(-1)
            arguments[place] = relax.const(into)
        given = [kernel, relax.Tuple(arguments), *call.args[2:]]
        return relax.Call(call.op, given, call.attrs, call.ty_args)


def _is_weight(value: relax.Expr) -> bool:
    return is_constant(value) and sum(each > 1 for each in value.value.shape) >= _ORDERED_AXES


def layout_blocks(module: tvm.IRModule) -> dict[int, Any]:
    """The blocks of a scheduled kernel that rewrite layouts, by number of the argument."""
    function = module["main"]
    blocks = nodes_of(function.body, tvm.s_tir.SBlock)
    rewriting = [each for each in blocks if PREPROC in (each.annotations or {})]
    return {
        place: block
        for block in rewriting
        for place, parameter in enumerate(function.params)
        if any(region.source.same_as(parameter) for region in block.reads)
    }


def addresses_of(block: Any, size: int) -> np.ndarray:
    """Where a block of `layout_blocks` writes each of so many weights, in their order.

    `LayoutError` if two weights have the same address, or the block does something else than copy.
    """
    store, axes = block.body, list(block.iter_vars)
    extents = [int(axis.dom.extent) for axis in axes]
    if not _is_copy(getattr(store, "value", None), [axis.var for axis in axes], extents):
        raise LayoutError("the layout of its weights is no mere copy")
    grid = np.meshgrid(*map(np.arange, extents), indexing="ij", sparse=True)
    elements = dict(zip((axis.var for axis in axes), grid, strict=True))
    # Parts of the addresses by their shapes: only the last sums are as large as the weights.
    parts: dict[tuple[int, ...], Any] = {}
    try:
        shape, stride = shape_of(store.buffer), 1
        if prod(shape) != size:
            raise LayoutError(f"its layout has room for {prod(shape)} of {size} weights")
        for index, extent in reversed([*zip(store.indices, shape, strict=True)]):
            part = np.asarray(evaluate(index, elements)) * stride
            parts[part.shape] = parts.get(part.shape, 0) + part
            stride *= extent
    except NotAffineError as fault:
        raise LayoutError(f"the layout of its weights is not known: {fault}") from None
    places = np.broadcast_to(sum(sorted(parts.values(), key=np.size)), extents).reshape(-1)
    if places.min() < 0 or places.max() >= size:
        raise LayoutError("its layout puts weights outside of their buffer")
    is_taken = np.zeros(size, dtype=bool)
    is_taken[places] = True
    if not is_taken.all():
        raise LayoutError("its layout puts several weights in one place")
    return places


def _is_copy(load: Any, variables: Sequence[Any], extents: Sequence[int]) -> bool:
    """Whether a value is read from a buffer at the block's own indices."""
    if type(load).__name__ != "TensorLoad" or len(load.indices) != len(variables):
        return False
    return all(
        index.same_as(variable) or (extent == 1 and type(index).__name__ == "IntImm")
        for index, variable, extent in zip(load.indices, variables, extents, strict=True)
    )
