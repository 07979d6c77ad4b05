"""Computes the parts of a concatenation in its buffer, so that nothing is copied.

Each part gets its place in the buffer of the whole. Every kernel that writes or reads the part
gets the whole buffer, and TIR's ``match_buffer`` selects the region. Schedules stay as they were
measured: only addresses change. In a chain of concatenations, as in DenseNet, the buffer of the
last holds all parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm_ffi

from fewtune.artifacts import MAIN
from fewtune.runtime.executable import IN_PLACE
from fewtune.runtime.tvm import relax, te, tvm
from fewtune.task.analysis import model_functions

# Rows of a part have to begin and end at whole vectors.
_ALIGNED_ELEMENTS = 16


class _Place(NamedTuple):
    """The place of a tensor: the whole in whose buffer it is, and its first element by axis."""

    whole: relax.Var
    begin: tuple[int, ...]


class _Call(NamedTuple):
    """A kernel call: the kernel's name, and its arguments."""

    kernel: str
    tensors: tuple[relax.Expr, ...]


def concatenations(lowered: tvm.IRModule) -> dict[str, int]:
    """The kernels that only concatenate, with the axis.

    They are structurally equal to TOPI's for their shapes; names do not matter.
    """
    axes = {
        symbol.name_hint: _axis_of(function)
        for symbol, function in lowered.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    return {name: axis for name, axis in axes.items() if axis is not None}


def _axis_of(function: tvm.tirx.PrimFunc) -> int | None:
    *parts, whole = shapes = _shapes(function.params)
    # A broadcast has shapes like these, but another rank.
    if not parts or any(len(part) != len(whole) for part in parts):
        return None
    for axis, extent in enumerate(whole):
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        if len(others) != 1 or sum(part[axis] for part in parts) != extent:
            continue
        given = [te.placeholder(each.shape, str(each.dtype)) for each in function.params[:-1]]
        made = te.create_prim_func([*given, tvm.topi.concatenate(given, axis)])
        if tvm_ffi.structural_equal(made.body, function.body, map_free_vars=True):
            return axis
    return None


def write_in_place(
    module: tvm.IRModule, axes: Mapping[str, int]
) -> tuple[tvm.IRModule, Counter[str]]:
    """Leave out the concatenations whose parts can all be computed in place.

    A kernel may read one part of a buffer and write another, since they do not overlap.

    Parameters
    ----------
    module : IRModule
        After ``CallTIRRewrite``: functions allocate tensors and call kernels with them.
    axes : dict of int
        From `concatenations`.

    Returns
    -------
    module : IRModule
        Without kernels that are not called any more.
    left_out : Counter of str
        Number of calls that the largest shape's function does without, by kernel.
    """
    rewriting = _Rewriting(module, axes)
    left_out = {name: rewriting.rewrite(name) for name in model_functions(module)}
    if not any(left_out.values()):
        return module, Counter()
    module = rewriting.builder.get()
    called = {
        call.kernel
        for name in model_functions(module)
        for call in _Dataflow(module[name]).calls.values()
    }
    functions = {
        symbol: function
        for symbol, function in module.functions_items()
        if symbol.name_hint in called or not isinstance(function, tvm.tirx.PrimFunc)
    }
    return tvm.IRModule(functions, attrs=module.attrs), left_out[MAIN]


class _Dataflow:
    """The tensors that a function allocates, and its kernel calls.

    Attributes
    ----------
    all : list of Binding
    allocated : dict of Binding
        By tensor, the binding that allocates it.
    calls : dict of _Call
        By the number of the binding.
    escaping : set of Var
        Tensors that something other than a kernel uses, such as the caller of the function.
    """

    def __init__(self, main: relax.Function) -> None:
        self.all = [binding for block in main.body.blocks for binding in block.bindings]
        self.allocated: dict[relax.Expr, relax.Binding] = {}
        self.calls: dict[int, _Call] = {}
        self._same: dict[relax.Expr, relax.Expr] = {}
        used = [main.body.body]
        for number, binding in enumerate(self.all):
            value = binding.value
            operator = value.op if isinstance(value, relax.Call) else None
            if isinstance(value, relax.Var):
                self._same[binding.var] = value
            elif isinstance(operator, tvm.ir.GlobalVar):
                self.calls[number] = _Call(operator.name_hint, tuple(map(self.root, value.args)))
            elif getattr(operator, "name", "") == "relax.builtin.alloc_tensor":
                self.allocated[binding.var] = binding
            else:
                used.append(value)
        self.escaping = {self.root(v) for each in used for v in relax.analysis.free_vars(each)}

    def root(self, value: relax.Expr) -> relax.Expr:
        """The tensor for which a variable is another name."""
        while value in self._same:
            value = self._same[value]
        return value


class _Rewriting:
    """Rewrites functions, and the kernels that get wholes instead of parts.

    Attributes
    ----------
    builder : BlockBuilder
        Of the module, with what is rewritten; no kernel is removed.
    """

    def __init__(self, module: tvm.IRModule, axes: Mapping[str, int]) -> None:
        self.builder = relax.BlockBuilder(module)
        self._module, self._axes = module, axes
        self._made: dict[Any, tvm.ir.GlobalVar] = {}

    def rewrite(self, name: str) -> Counter[str]:
        """Rewrite a function; return the calls that it does without, by kernel."""
        main = self._module[name]
        graph = _Dataflow(main)
        left_out, places = self._plan(graph)
        if left_out:
            body = relax.SeqExpr(
                [relax.BindingBlock(self._bindings(graph, places, left_out))], main.body.body
            )
            main = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
            self.builder.update_func(self._module.get_global_var(name), main)
        return Counter(graph.calls[number].kernel for number in left_out)

    def _plan(self, graph: _Dataflow) -> tuple[list[int], dict[relax.Expr, _Place]]:
        """The bindings of concatenations to leave out, and the places of their parts.

        Only kernels may write and read a part. It may be a part of one concatenation only. Its rows
        have to be whole vectors.
        """
        left_out: list[int] = []
        inner: dict[relax.Expr, _Place] = {}
        for number, call in graph.calls.items():
            if call.kernel not in self._axes:
                continue
            axis, given = self._axes[call.kernel], self._module[call.kernel].params
            *parts, whole = call.tensors
            *shapes, _ = _shapes(given)
            can_be_placed = len(set(parts)) == len(parts) and all(
                part in graph.allocated
                and part not in graph.escaping
                and part not in inner
                and math.prod(shape[axis:]) % _ALIGNED_ELEMENTS == 0
                for part, shape in zip(parts, shapes, strict=True)
            )
            # After a reshape, an allocated tensor may have another rank than the kernel's argument.
            if (
                not can_be_placed
                or whole not in graph.allocated
                or _shapes(call.tensors) != _shapes(given)
            ):
                continue
            offset = 0
            for part, shape in zip(parts, shapes, strict=True):
                begin = [offset if each == axis else 0 for each in range(len(shape))]
                inner[part] = _Place(whole, tuple(begin))
                offset += shape[axis]
            left_out.append(number)
        return left_out, {tensor: _outermost(tensor, inner) for tensor in inner}

    def _bindings(
        self, graph: _Dataflow, places: Mapping[relax.Expr, _Place], left_out: list[int]
    ) -> list[relax.Binding]:
        """The remaining bindings; a whole is allocated where its first part was."""
        found: list[relax.Binding] = []
        allocated: set[relax.Expr] = set()
        for number, binding in enumerate(graph.all):
            if binding.var in graph.allocated:
                place = places.get(binding.var)
                buffer = binding.var if place is None else place.whole
                if buffer not in allocated:
                    allocated.add(buffer)
                    found.append(graph.allocated[buffer])
            elif number in graph.calls:
                if number not in left_out:
                    call = self._call(graph.calls[number], binding.value, places)
                    found.append(relax.VarBinding(binding.var, call))
            # Other names of a part are not needed, since kernels get the whole.
            elif graph.root(binding.var) not in places:
                found.append(binding)
        return found

    def _call(
        self, call: _Call, given: relax.Call, places: Mapping[relax.Expr, _Place]
    ) -> relax.Call:
        """A call whose kernel gets wholes; it is made once for equal regions."""
        arguments, regions = list(given.args), {}
        for number, tensor in enumerate(call.tensors):
            if tensor in places:
                whole, begin = places[tensor]
                arguments[number] = whole
                regions[number] = (_shapes([whole])[0], begin)
        if not regions:
            return given
        key = (call.kernel, *regions.items())
        if key not in self._made:
            name = f"{call.kernel}{IN_PLACE}{len(self._made)}"
            function = _within(self._module[call.kernel], regions)
            function = function.with_attr("global_symbol", name)
            self._made[key] = self.builder.add_func(function, name)
        return relax.Call(self._made[key], arguments, given.attrs, given.ty_args)


def _outermost(tensor: relax.Expr, inner: Mapping[relax.Expr, _Place]) -> _Place:
    """The final place of a tensor, since its whole may be a part itself."""
    place = inner[tensor]
    while place.whole in inner:
        whole, begin = inner[place.whole]
        begin = tuple(first + further for first, further in zip(begin, place.begin, strict=True))
        place = _Place(whole, begin)
    return place


def _within(
    function: tvm.tirx.PrimFunc, regions: Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
) -> tvm.tirx.PrimFunc:
    """A kernel some of whose buffers are regions of larger ones.

    By argument number, the extents of the larger buffer, and the first element of the region.
    """
    buffers, matched = list(function.params), []
    opened: dict[tvm.tirx.Var, tvm.tirx.Buffer] = {}
    for number, (whole, first_element) in regions.items():
        given = buffers[number]
        kind = str(given.shape[0].ty)
        # ``match_buffer`` sets it to the offset of the region.
        begin = tvm.tirx.Var(f"{given.name}_begin", kind)
        narrow = tvm.tirx.decl_buffer(given.shape, given.dtype, given.name, elem_offset=begin)
        extents = [tvm.tirx.const(extent, kind) for extent in whole]
        wide = tvm.tirx.decl_buffer(extents, given.dtype, f"{given.name}_whole")
        ranges = [
            tvm.ir.Range.from_min_extent(tvm.tirx.const(first, kind), extent)
            for first, extent in zip(first_element, given.shape, strict=True)
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


def _shapes(tensors: Any) -> list[tuple[int, ...]]:
    """Extents of buffers, or of tensors that a function allocates."""
    return [tuple(int(extent) for extent in each.ty.shape) for each in tensors]
