"""Parts of a concatenation computed where it would copy them, so that nothing is left to copy.

Each part gets its place in the buffer of the whole, and every kernel that writes or reads the part
is given the whole and told, by TIR's ``match_buffer``, which region of it is meant. Schedules stay
as they were measured: only addresses change. Of a chain of concatenations, as DenseNet has, all
live in the buffer of the last.

What is a concatenation is not told from names: its kernel must be, node by node, the one that
TOPI makes of such shapes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import tvm_ffi

from fewtune.tvm_runtime import relax, te, tvm

# A row of a part begins and ends with a vector, or vectors would have to be taken apart.
_ALIGNED_ELEMENTS = 16


class _Place(NamedTuple):
    """Where a tensor lives: in whose buffer, and where in it the tensor begins, by axis."""

    whole: relax.Var
    begin: tuple[int, ...]


class _Region(NamedTuple):
    """The part of a larger buffer that is meant: the buffer's extents, and the part's begin."""

    shape: tuple[int, ...]
    begin: tuple[int, ...]


class _Call(NamedTuple):
    """A kernel call: its number among the bindings, the kernel, and the tensors given to it."""

    number: int
    kernel: str
    tensors: tuple[relax.Expr, ...]


def concatenations(lowered: tvm.IRModule) -> dict[str, int]:
    """The kernels that do nothing but concatenate, with the axis along which they do.

    Parameters
    ----------
    lowered : IRModule
        Fused kernels without schedules.
    """
    axes = {
        symbol.name_hint: _axis_of(function)
        for symbol, function in lowered.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    return {name: axis for name, axis in axes.items() if axis is not None}


def write_in_place(module: tvm.IRModule, axes: dict[str, int]) -> tuple[tvm.IRModule, Counter[str]]:
    """Leave out the concatenations whose parts can all be computed in place.

    A part can be, if only kernels write and read it, if it is part of no other concatenation that
    was left out before, and if its rows are whole vectors. A kernel may read one part of a buffer
    and write another: it relies on no element of what it reads being written, not on more.

    Parameters
    ----------
    module : IRModule
        After ``CallTIRRewrite``: ``main`` allocates tensors and calls kernels with them.
    axes : dict of int
        Concatenating kernels, as `concatenations` found them.

    Returns
    -------
    module : IRModule
        Without kernels that nobody calls any more.
    left_out : Counter of str
        Calls that are gone, by kernel.
    """
    main = module["main"]
    graph = _Graph(main)
    left_out, places = _plan(graph, axes)
    if not left_out:
        return module, Counter()
    rewriting = _Rewriting(module, graph, places)
    bindings = rewriting.bindings({call.number for call in left_out})
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    main = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    rewriting.builder.update_func(module.get_global_var("main"), main)
    called = {binding.value.op.name_hint for binding in bindings if _calls_kernel(binding.value)}
    functions = {
        symbol: function
        for symbol, function in rewriting.builder.get().functions_items()
        if symbol.name_hint in called or not isinstance(function, tvm.tirx.PrimFunc)
    }
    counts = Counter(call.kernel for call in left_out)
    return tvm.IRModule(functions, attrs=module.attrs), counts


def _axis_of(function: tvm.tirx.PrimFunc) -> int | None:
    """The axis along which a kernel concatenates; None where it does anything else."""
    buffers = list(function.params)
    if len(buffers) < 2 or not all(_has_known_shape(each) for each in buffers):
        return None
    shapes = [[int(extent) for extent in each.shape] for each in buffers]
    *parts, whole = shapes
    for axis, extent in enumerate(whole):
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        is_sum = len(others) == 1 and sum(shape[axis] for shape in parts) == extent
        # A rank that differs may look alike without the axis, but no such sum is made by TOPI.
        if not is_sum or any(len(shape) != len(whole) for shape in parts):
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


class _Graph:
    """What ``main`` allocates, and which kernels it calls with that.

    Attributes
    ----------
    all : list of Binding
    allocated : dict of int
        By tensor, the number of the binding that allocates it.
    calls : list of _Call
    seen : set of Var
        Tensors that anything else than a kernel gets to see, the caller of ``main`` among them.
    """

    def __init__(self, main: relax.Function) -> None:
        self.all = [binding for block in main.body.blocks for binding in block.bindings]
        self.allocated: dict[relax.Var, int] = {}
        self.calls: list[_Call] = []
        self.seen: set[relax.Expr] = set()
        self._same: dict[relax.Var, relax.Var] = {}
        for number, binding in enumerate(self.all):
            self._add(number, binding.var, binding.value)
        self._see(main.body.body)

    def root(self, value: relax.Expr) -> relax.Expr:
        """The tensor that a variable is another name of."""
        while value in self._same:
            value = self._same[value]
        return value

    def shape(self, tensor: relax.Expr) -> tuple[int, ...]:
        """Extents of an allocated tensor."""
        return tuple(int(extent) for extent in tensor.ty.shape)

    def _add(self, number: int, name: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Var):
            self._same[name] = value
        elif _calls_kernel(value):
            tensors = tuple(self.root(each) for each in value.args)
            self.calls.append(_Call(number, value.op.name_hint, tensors))
        elif _allocates(value):
            self.allocated[name] = number
        else:
            self._see(value)

    def _see(self, value: relax.Expr) -> None:
        self.seen.update(self.root(each) for each in relax.analysis.free_vars(value))


def _plan(graph: _Graph, axes: dict[str, int]) -> tuple[list[_Call], dict[relax.Expr, _Place]]:
    """Which calls are to be left out, and where the parts live that they would have copied."""
    left_out: list[_Call] = []
    inner: dict[relax.Expr, _Place] = {}
    for call in graph.calls:
        if call.kernel not in axes:
            continue
        axis = axes[call.kernel]
        *parts, whole = call.tensors
        if whole not in graph.allocated or not _can_live_elsewhere(graph, parts, axis, inner):
            continue
        offset = 0
        for part in parts:
            begin = [offset if each == axis else 0 for each in range(len(graph.shape(whole)))]
            inner[part] = _Place(whole, tuple(begin))
            offset += graph.shape(part)[axis]
        left_out.append(call)
    return left_out, {tensor: _outermost(tensor, inner) for tensor in inner}


def _can_live_elsewhere(
    graph: _Graph, parts: Sequence[relax.Expr], axis: int, placed: dict[relax.Expr, _Place]
) -> bool:
    """Whether kernels are all that know of some tensors, and vectors fit into their rows."""
    return len(set(parts)) == len(parts) and all(
        part in graph.allocated
        and part not in graph.seen
        and part not in placed
        and math.prod(graph.shape(part)[axis:]) % _ALIGNED_ELEMENTS == 0
        for part in parts
    )


def _outermost(tensor: relax.Expr, inner: dict[relax.Expr, _Place]) -> _Place:
    """Where a tensor lives in the end: the whole that it is a part of may be a part itself."""
    place = inner[tensor]
    while place.whole in inner:
        whole, begin = inner[place.whole]
        begin = tuple(first + further for first, further in zip(begin, place.begin, strict=True))
        place = _Place(whole, begin)
    return place


def _home(tensor: relax.Expr, places: dict[relax.Expr, _Place]) -> relax.Expr:
    """In whose buffer a tensor lives: its own, unless it is a part."""
    return places[tensor].whole if tensor in places else tensor


class _Rewriting:
    """Makes the bindings anew, and the kernels that are given wholes instead of parts.

    Attributes
    ----------
    builder : BlockBuilder
        Of the module, with these kernels.
    """

    def __init__(
        self, module: tvm.IRModule, graph: _Graph, places: dict[relax.Expr, _Place]
    ) -> None:
        self.builder = relax.BlockBuilder(module)
        self._module = module
        self._graph = graph
        self._places = places
        self._made: dict[tuple, tvm.ir.GlobalVar] = {}

    def bindings(self, left_out: set[int]) -> list[relax.Binding]:
        """The bindings but for some; a whole is allocated where its first part was."""
        graph = self._graph
        calls = {call.number: call for call in graph.calls}
        found: list[relax.Binding] = []
        allocated: set[relax.Expr] = set()
        for number, binding in enumerate(graph.all):
            if binding.var in graph.allocated:
                home = _home(binding.var, self._places)
                if home not in allocated:
                    allocated.add(home)
                    found.append(graph.all[graph.allocated[home]])
            elif number in calls:
                if number not in left_out:
                    call = self._call(calls[number], binding.value)
                    found.append(relax.VarBinding(binding.var, call))
            # Kernels are given the whole itself: nobody needs another name of a part.
            elif graph.root(binding.var) not in self._places:
                found.append(binding)
        return found

    def _call(self, call: _Call, given: relax.Call) -> relax.Call:
        moved = {
            number: self._places[tensor]
            for number, tensor in enumerate(call.tensors)
            if tensor in self._places
        }
        if not moved:
            return given
        regions = {n: _Region(self._graph.shape(p.whole), p.begin) for n, p in moved.items()}
        arguments = [
            moved[number].whole if number in moved else each
            for number, each in enumerate(given.args)
        ]
        kernel = self._kernel(call.kernel, regions)
        return relax.Call(kernel, arguments, given.attrs, given.ty_args)

    def _kernel(self, name: str, regions: dict[int, _Region]) -> tvm.ir.GlobalVar:
        """A kernel that finds some of its tensors within others; made once for equal places."""
        key = (name, *sorted(regions.items()))
        if key not in self._made:
            made_name = f"{name}_in_place{len(self._made)}"
            function = _within(self._module[name], regions)
            function = function.with_attr("global_symbol", made_name)
            self._made[key] = self.builder.add_func(function, made_name)
        return self._made[key]


def _within(function: tvm.tirx.PrimFunc, regions: dict[int, _Region]) -> tvm.tirx.PrimFunc:
    """A kernel some of whose buffers, by number, are regions of larger ones."""
    buffers, matched = list(function.params), []
    opened: dict[tvm.tirx.Var, tvm.tirx.Buffer] = {}
    for number, region in sorted(regions.items()):
        given = buffers[number]
        kind = str(given.shape[0].ty)
        # Where it begins is left for ``match_buffer`` to say.
        begin = tvm.tirx.Var(f"{given.name}_begin", kind)
        narrow = tvm.tirx.decl_buffer(given.shape, given.dtype, given.name, elem_offset=begin)
        extents = [tvm.tirx.const(extent, kind) for extent in region.shape]
        wide = tvm.tirx.decl_buffer(extents, given.dtype, f"{given.name}_whole")
        ranges = [
            tvm.ir.Range.from_min_extent(tvm.tirx.const(first, kind), extent)
            for first, extent in zip(region.begin, given.shape, strict=True)
        ]
        source = tvm.tirx.BufferRegion(wide, ranges)
        matched.append(tvm.s_tir.MatchBufferRegion(narrow, source))
        opened[given], buffers[number] = narrow, wide
    realize = tvm_ffi.structural_map(
        function.body, (tvm.tirx.Var, lambda var: opened.get(var, var)), order="post"
    )
    block = realize.block
    root = tvm.s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        block.body,
        block.init,
        block.alloc_buffers,
        [*block.match_buffers, *matched],
        block.annotations,
    )
    body = tvm.s_tir.SBlockRealize(realize.iter_values, realize.predicate, root)
    return tvm.tirx.PrimFunc(buffers, body, function.ret_type, function.attrs)


def _calls_kernel(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)


def _allocates(value: relax.Expr) -> bool:
    name = getattr(value.op, "name", None) if isinstance(value, relax.Call) else None
    return name == "relax.builtin.alloc_tensor"
