"""Computes the parts of a concatenation in its buffer, so that nothing is copied.

Each part gets its place in the buffer of the whole. Every kernel that writes or reads the part
gets the whole buffer, and TIR's ``match_buffer`` selects the region. Schedules stay as they were
measured: only addresses change. In a chain of concatenations, as in DenseNet, the buffer of the
last holds all parts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import tvm_ffi

from fewtune.artifacts import MAIN
from fewtune.compile.concatenations import Call, Dataflow, Place, buffer_of, calls_kernel, plan
from fewtune.runtime.executable import IN_PLACE
from fewtune.runtime.tvm import relax, tvm
from fewtune.task.analysis import model_functions


class _Region(NamedTuple):
    """A region of a larger buffer: the buffer's extents, and the region's first element."""

    shape: tuple[int, ...]
    begin: tuple[int, ...]


def write_in_place(module: tvm.IRModule, axes: dict[str, int]) -> tuple[tvm.IRModule, Counter[str]]:
    """Leave out the concatenations whose parts can all be computed in place.

    See `fewtune.compile.concatenations.plan` for the conditions. A kernel may read one part of a
    buffer and write another, since they do not overlap.

    Parameters
    ----------
    module : IRModule
        After ``CallTIRRewrite``: functions allocate tensors and call kernels with them.
    axes : dict of int
        From `fewtune.compile.concatenations.concatenations`.

    Returns
    -------
    module : IRModule
        Without kernels that are not called any more.
    left_out : Counter of str
        Number of removed calls, by kernel.
    """
    by_function: dict[str, Counter[str]] = {}
    for name in model_functions(module):
        module, by_function[name] = _write_function_in_place(module, name, axes)
    if not any(by_function.values()):
        return module, Counter()
    called = {
        binding.value.op.name_hint
        for name in model_functions(module)
        for block in module[name].body.blocks
        for binding in block.bindings
        if calls_kernel(binding.value)
    }
    functions = {
        symbol: function
        for symbol, function in module.functions_items()
        if symbol.name_hint in called or not isinstance(function, tvm.tirx.PrimFunc)
    }
    # Reports are about the largest shape.
    return tvm.IRModule(functions, attrs=module.attrs), by_function[MAIN]


def _write_function_in_place(
    module: tvm.IRModule, name: str, axes: dict[str, int]
) -> tuple[tvm.IRModule, Counter[str]]:
    """`write_in_place` for one of the module's functions; kernels that it leaves out stay."""
    main = module[name]
    graph = Dataflow(main)
    left_out, places = plan(graph, axes)
    if not left_out:
        return module, Counter()
    rewriting = _Rewriting(module, graph, places)
    bindings = rewriting.bindings({call.number for call in left_out})
    body = relax.SeqExpr([relax.BindingBlock(bindings)], main.body.body)
    main = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    rewriting.builder.update_func(module.get_global_var(name), main)
    made = rewriting.builder.get()
    return made, Counter(call.kernel for call in left_out)


class _Rewriting:
    """Rewrites the bindings, and the kernels that get wholes instead of parts.

    Attributes
    ----------
    builder : BlockBuilder
        Of the module, with the rewritten kernels.
    """

    def __init__(
        self, module: tvm.IRModule, graph: Dataflow, places: dict[relax.Expr, Place]
    ) -> None:
        self.builder = relax.BlockBuilder(module)
        self._module = module
        self._graph = graph
        self._places = places
        self._made: dict[tuple[Any, ...], tvm.ir.GlobalVar] = {}

    def bindings(self, left_out: set[int]) -> list[relax.Binding]:
        """The remaining bindings; a whole is allocated where its first part was."""
        graph = self._graph
        calls = {call.number: call for call in graph.calls}
        found: list[relax.Binding] = []
        allocated: set[relax.Expr] = set()
        for number, binding in enumerate(graph.all):
            if binding.var in graph.allocated:
                buffer = buffer_of(binding.var, self._places)
                if buffer not in allocated:
                    allocated.add(buffer)
                    found.append(graph.all[graph.allocated[buffer]])
            elif number in calls:
                if number not in left_out:
                    call = self._call(calls[number], binding.value)
                    found.append(relax.VarBinding(binding.var, call))
            # Other names of a part are not needed, since kernels get the whole.
            elif graph.root(binding.var) not in self._places:
                found.append(binding)
        return found

    def _call(self, call: Call, given: relax.Call) -> relax.Call:
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
        """A kernel some of whose tensors are regions of others; made once for equal regions."""
        key = (name, *sorted(regions.items()))
        if key not in self._made:
            made_name = f"{name}{IN_PLACE}{len(self._made)}"
            function = _within(self._module[name], regions)
            function = function.with_attr("global_symbol", made_name)
            self._made[key] = self.builder.add_func(function, made_name)
        return self._made[key]


def _within(function: tvm.tirx.PrimFunc, regions: dict[int, _Region]) -> tvm.tirx.PrimFunc:
    """A kernel some of whose buffers, by argument number, are regions of larger buffers."""
    buffers, matched = list(function.params), []
    opened: dict[tvm.tirx.Var, tvm.tirx.Buffer] = {}
    for number, region in sorted(regions.items()):
        given = buffers[number]
        kind = str(given.shape[0].ty)
        # ``match_buffer`` sets it to the offset of the region.
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
