"""Weights in the layout that their kernel's schedule reads them in.

A weight is constant, so its layout is the compiler's to choose: MetaSchedule's ``RewriteLayout``
permutes it to the order of the schedule's loops, and each register tile then streams through
memory instead of stepping over it. `mark` says which arguments are free; `fold` permutes the
constants once, while the model is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi

from fewtune.runtime.executable import PREPACKED
from fewtune.runtime.tvm import relax, tvm
from fewtune.task.analysis import call_counts, kernel_calls, model_functions
from fewtune.task.layout_maps import PREPROC, LayoutError, lay_out, layout_blocks
from fewtune.tvm_compat.values import is_constant

FREE = "layout_free_buffers"
_ORDERED_AXES = 2
_REDUCTION = tvm.tirx.IterVar.CommReduce


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
        straight = sorted(place for place in places if reads_straight(function, place))
        if straight:
            marked.update_func(lowered.get_global_var(name), function.with_attr(FREE, straight))
    return marked


def reads_straight(function: tvm.tirx.PrimFunc, place: int) -> bool:
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
    place : int
        Number of the argument.
    """
    buffer = function.params[place]
    return isinstance(buffer, tvm.tirx.Buffer) and _is_read_straight(function, buffer)


def _is_read_straight(function: tvm.tirx.PrimFunc, buffer: tvm.tirx.Buffer) -> bool:
    reads = [
        (block, region)
        for block in _blocks(function)
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
        or _is_read_straight(function, written.source)
        for written in block.writes
    )


def _blocks(function: tvm.tirx.PrimFunc) -> list[tvm.s_tir.SBlock]:
    found: list[tvm.s_tir.SBlock] = []

    def take(block: tvm.s_tir.SBlock) -> None:
        found.append(block)

    tvm_ffi.structural_walk(function.body, (tvm.s_tir.SBlock, take))
    return found


def _is(value: object, wanted: object) -> bool:
    """Whether a number in TensorIR is known, and equal to another."""
    known = [int(each.value) if hasattr(each, "value") else each for each in (value, wanted)]
    return known[0] is not None and isinstance(known[0], int) and known[0] == known[1]


def without_layout_block(module: tvm.IRModule) -> tvm.IRModule:
    """A scheduled kernel that takes its weights as `fold` lays them out."""
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    left = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
    if not layout_blocks(module):
        return left
    # TVM leaves the block's loops, which do nothing.
    tirx, nothing, body = tvm.tirx, tvm.tirx.Evaluate, left["main"].body

    def block(realize: Any) -> Any:
        is_empty = PREPROC in realize.block.annotations and isinstance(realize.block.body, nothing)
        return realize.block.body if is_empty else realize

    def loop(stmt: Any) -> Any:
        return stmt.body if isinstance(stmt.body, nothing) else stmt

    def sequence(stmts: Any) -> Any:
        rest = [each for each in stmts.seq if not isinstance(each, nothing)]
        return rest[0] if len(rest) == 1 else tirx.SeqStmt(rest)

    for step in ((tvm.s_tir.SBlockRealize, block), (tirx.For, loop), (tirx.SeqStmt, sequence)):
        body = tvm_ffi.structural_map(body, step, order="post")
    return tvm.IRModule({"main": left["main"].with_body(body)})


def fold(scheduled: tvm.IRModule) -> tvm.IRModule:
    """Permute the weights of a scheduled model, and remove the permutations from its kernels.

    Parameters
    ----------
    scheduled : IRModule
        Some of its kernels begin with the block that ``RewriteLayout`` inserts.

    Returns
    -------
    folded : IRModule
        The same model, with constants in the order in which its kernels read them.
    """
    # The pass refuses kernels without blocks, such as a scatter, which permute nothing.
    whole = {variable: f for variable, f in scheduled.functions_items() if not _is_bare(f)}
    folded = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(whole, attrs=scheduled.attrs))
    for variable, function in scheduled.functions_items():
        if _is_bare(function):
            folded[variable] = function
    folded = _laid_out(folded, set(scheduled.functions))
    # The permuting kernels, and the kernels before splitting, remain but are not called.
    needed = {*model_functions(folded), *call_counts(folded)}
    # Splitting a kernel loses the mark, which says what may be prefetched.
    marks = {
        variable.name_hint + PREPACKED: function.attrs[FREE]
        for variable, function in scheduled.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc) and FREE in (function.attrs or {})
    }
    functions = {}
    for variable, function in folded.functions_items():
        name = variable.name_hint
        if name in needed:
            functions[variable] = (
                function.with_attr(FREE, marks[name]) if name in marks else function
            )
    return tvm.IRModule(functions, attrs=folded.attrs)


def _laid_out(split: tvm.IRModule, kept: set[tvm.ir.GlobalVar]) -> tvm.IRModule:
    """Replace the calls of kernels that permute weights by their results.

    TVM's ``FoldConstant`` does the same, and builds the kernel anew for each weight: 9 s for a
    network of 257. NumPy needs no kernel.

    Parameters
    ----------
    split : IRModule
    kept : set of GlobalVar
        The functions that existed before kernels were split.
    """
    for name in model_functions(split):
        main = split[name]
        laid_out = {
            binding.var: _permuted(split, binding.value)
            for block in main.body.blocks
            for binding in block.bindings
            if _permutes(binding.value, kept)
        }
        if laid_out:
            _replace(split, name, laid_out)
    return split


def _permuted(split: tvm.IRModule, call: relax.Call) -> relax.Constant:
    """The result of a call that permutes a weight."""
    given = call.args[1].fields[0].value
    into = np.empty([int(extent) for extent in call.ty_args[0].shape], str(given.dtype))
    blocks = [block for block in _blocks(split[call.args[0]]) if len(block.iter_vars)]
    if len(blocks) != 1:
        raise LayoutError("the layout of its weights takes several steps")
    lay_out(blocks[0], given.numpy(), into)
    return relax.const(into)


def _replace(split: tvm.IRModule, name: str, laid_out: dict[relax.Expr, relax.Expr]) -> None:
    """Replace variables of one function by constants."""
    main, builder, blocks = split[name], relax.BlockBuilder(split), []
    for block in main.body.blocks:
        rest = [
            relax.VarBinding(binding.var, builder.normalize(_with(binding.value, laid_out)))
            for binding in block.bindings
            if binding.var not in laid_out
        ]
        blocks.append(type(block)(rest))
    body = relax.SeqExpr(blocks, main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    split.update_func(split.get_global_var(name), changed)


def _permutes(value: relax.Expr, kept: set[tvm.ir.GlobalVar]) -> bool:
    """Whether this is a call of a kernel that was split off, with a constant."""
    if not isinstance(value, relax.Call) or not value.args or value.args[0] in kept:
        return False
    if not isinstance(value.args[0], tvm.ir.GlobalVar):
        return False
    given = list(value.args[1].fields)
    return len(given) == 1 and is_constant(given[0])


def _with(value: relax.Expr, laid_out: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """A call of a kernel with its weights laid out."""
    if not isinstance(value, relax.Call) or len(value.args) < _ORDERED_AXES:
        return value
    fields = getattr(value.args[1], "fields", ())
    if not any(field in laid_out for field in fields):
        return value
    arguments = relax.Tuple([laid_out.get(field, field) for field in fields])
    return relax.Call(
        value.op, [value.args[0], arguments, *value.args[2:]], value.attrs, value.ty_args
    )


def _is_bare(function: tvm.ir.BaseFunc) -> bool:
    """Whether a kernel has only the outermost block."""
    if not isinstance(function, tvm.tirx.PrimFunc):
        return False
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}), debug_mask="none")
    try:
        return not schedule.get_child_blocks(schedule.get_sblock("root"))
    except tvm.s_tir.ScheduleError:
        return True


def _is_weight(value: relax.Expr) -> bool:
    if not is_constant(value):
        return False
    return sum(extent > 1 for extent in value.value.shape) >= _ORDERED_AXES
