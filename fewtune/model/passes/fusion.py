"""Fuses kernels within a limit of work, which nested operators multiply.

A schedule writes a fused operator into each of its readers, and TVM simplifies what comes out as a
tree. An operator that reads its input twice doubles what stands before it, and a function such as
``exp`` multiplies it: six of them in each other take minutes.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from fewtune.runtime.tvm import relax, tvm
from fewtune.task.access import nodes_of

# Most operators in a kernel: TVM's own, and what a kernel above the limit is made of instead.
_DEPTHS = (256, 16, 4, 2)
_DEPTH = "relax.FuseOps.max_depth"
# About a second of compilation; a Mish, three functions in each other, is a fiftieth of it.
_MOST_WORK = 1 << 18
_MOST_BLOCKS = 64
_FUNCTIONS = frozenset(f"tirx.{name}" for name in ("erf", "exp", "log", "pow", "sigmoid", "tanh"))
_FACTOR = 16


def fuse(module: tvm.IRModule) -> tvm.IRModule:
    """Fuse operators, in each kernel as many as the limit allows."""
    # A recurrent layer's kernel is large before it is fused with anything.
    alone = _large(module)
    grouped, lowered = module, module
    for depth in _DEPTHS:
        with tvm.transform.PassContext(opt_level=3, config={_DEPTH: depth}):
            grouped = relax.transform.FuseOps()(grouped)
        lowered = relax.transform.FuseTIR()(grouped)
        apart = [name for name in _large(lowered) if alone.isdisjoint(_members(grouped, name))]
        if not apart:
            break
        grouped = _ungrouped(grouped, apart)
    return lowered


def _large(module: tvm.IRModule) -> set[str]:
    """Names of the kernels above the limit."""
    return {
        symbol.name_hint
        for symbol, each in module.functions_items()
        if isinstance(each, tvm.tirx.PrimFunc) and _is_too_much(each)
    }


def _members(grouped: tvm.IRModule, name: str) -> set[str]:
    """Names of the kernels of a group; the kernel itself if it is in none."""
    if isinstance(grouped[name], tvm.tirx.PrimFunc):
        return {name}
    return {each.name_hint for each in nodes_of(grouped[name].body, tvm.ir.GlobalVar)}


def _ungrouped(grouped: tvm.IRModule, names: list[str]) -> tvm.IRModule:
    """The kernels of some groups on their own again."""
    groups = {grouped.get_global_var(name): grouped[name] for name in names}
    single = tvm.IRModule(dict(grouped.functions_items()), attrs=grouped.attrs)
    single["main"] = grouped["main"].inline_functions(groups)
    return relax.transform.CanonicalizeBindings()(relax.transform.DeadCodeElimination()(single))


def _is_too_much(kernel: tvm.tirx.PrimFunc) -> bool:
    """Whether a kernel has too many blocks, or an expression becomes too large."""
    blocks = nodes_of(kernel.body, tvm.s_tir.SBlock)
    if len(blocks) > _MOST_BLOCKS:
        return True
    work: dict[Any, int] = {}
    for block in blocks:
        for store in nodes_of(block.body, tvm.tirx.BufferStore):
            made = _work(store.value, work)
            if made > _MOST_WORK:
                return True
            # A sum is computed before it is read.
            work[store.buffer] = 1 if block.init is not None else made
    return False


def _work(value: Any, before: dict[Any, int]) -> int:
    """The size of an expression with what it reads written into it."""
    size, functions = 1, 0

    def load(node: tvm.ir.TensorLoad) -> None:
        nonlocal size
        size += before.get(node.source, 1)

    def call(node: tvm.ir.Call) -> None:
        nonlocal functions
        functions += getattr(node.op, "name", "") in _FUNCTIONS

    tvm_ffi.structural_walk(value, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call)])
    return int(size * _FACTOR**functions)
