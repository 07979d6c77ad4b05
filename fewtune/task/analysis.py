"""What a kernel computes and what it costs, read from its TensorIR."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from fewtune.artifacts import BYTES_AN_INSTRUCTION, cost_flops
from fewtune.runtime.dot_products import any_dot
from fewtune.runtime.tvm import relax, tvm
from fewtune.task.access import bytes_of, shape_of

# Blocks of Winograd's transforms, and of the products between them.
INPUT_ROWS, INPUT = "winograd_input_rows", "winograd_input"
OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"
PRODUCTS = "winograd_matmul"
# The axis of the data between them that both transforms split among threads.
TILES = 1
# Machine balance of the roofline, in FLOPs a byte: about that of two AVX-512 cores (230 GFLOPS
# over 30 GB/s). Only ratios between tasks of one model depend on it, and little.
_FLOPS_PER_BYTE = 8.0
# A kernel call costs about 5 microseconds of thread start, the time of 150 kB.
_CALL_BYTES = 150_000
FLOAT32_BYTES = 4

_FAMILIES = (
    ("conv2d_transpose", r"conv2d_transpose"),
    ("conv2d", r"(group_)?conv2d"),
    ("conv1d", r"(group_)?conv1d"),
    ("conv3d", r"(group_)?conv3d"),
    ("dense", r"(matmul|dense|linear)"),
    ("pool", r"(adaptive_)?(max|avg)_pool\dd"),
    ("softmax", r"(log_)?softmax"),
    ("norm", r"(layer|group|instance|rms|batch)_norm"),
    ("reduce", r"(mean|sum|max|min|prod|variance|std|argmax|argmin)"),
    ("concatenate", r"(concatenate|concat)"),
    ("resize", r"resize\dd"),
    ("pad", r"pad"),
    ("transpose", r"transpose"),
    ("reshape", r"(reshape|flatten|squeeze|expand_dims)"),
)
# Blocks that TOPI writes before every transposed convolution.
_TRANSPOSED_CONVOLUTION = frozenset({"data_dilate", "kernel_transform"})
_REDUCED = tvm.tirx.IterVar.CommReduce


def cost_bytes(flops: float, size: float, calls: int = 1) -> float:
    """Time as the bytes that memory moves in it: arithmetic, then traffic, then calls."""
    return flops / _FLOPS_PER_BYTE + size + calls * _CALL_BYTES


@dataclass(frozen=True)
class KernelCost:
    """Anchor block, operator family and cost of one kernel."""

    anchor: str
    operator: str
    flops: float
    byte_flops: float
    bytes: int
    shapes: list[list[int]]
    dtype: str

    @property
    def weight_of_one_call(self) -> float:
        """Roofline time of one call, in bytes moved: comparable within a model only."""
        flops = cost_flops(self.flops, self.byte_flops)
        return max(flops / _FLOPS_PER_BYTE, self.bytes) + _CALL_BYTES


@dataclass(frozen=True)
class _BlockCost:
    """A block: its iterations, of all axes and of reduced ones, and its operations."""

    block: tvm.s_tir.SBlock
    points: int
    reduction: int

    @property
    def name(self) -> str:
        return str(self.block.name_hint)

    @property
    def flops(self) -> float:
        """A reduction multiplies and adds at each point; any other block counts one operation."""
        return self.byte_flops or float(self.points * (2 if self.reduction > 1 else 1))

    @cached_property
    def byte_flops(self) -> float:
        """The operations among these that are products of four bytes, multiplied and added."""
        is_dot = self.reduction > 1 and any_dot(self.block.body)
        return 2.0 * BYTES_AN_INSTRUCTION * self.points if is_dot else 0.0


def analyse(name: str | None, module: tvm.IRModule) -> KernelCost:
    """Analyse a task's module.

    Parameters
    ----------
    name : str or None
        The kernel's name, which lists its operators (``fused_conv2d3_add2_relu2``). A tuning log
        keeps the module alone: with None the family follows from the names of its blocks, and is
        the same for every family whose schedules are searched.
    module : IRModule
        One PrimFunc ``main``.

    Returns
    -------
    cost : KernelCost
        FLOPs count a multiplication and an addition as two, those of whole numbers as well, and
        of other blocks one a point.
    """
    buffers, blocks = module["main"].params, _blocks(module)
    anchor = max(blocks, key=lambda b: (b.reduction > 1, b.points), default=None)
    operator = _family(_name_by_blocks(blocks, anchor) if name is None else name)
    return KernelCost(
        anchor=anchor.name if anchor else "none",
        operator=_variant(operator, anchor.block) if anchor else operator,
        flops=sum(block.flops for block in blocks),
        byte_flops=sum(block.byte_flops for block in blocks),
        bytes=sum(map(bytes_of, buffers)),
        shapes=[shape_of(buffer) for buffer in buffers],
        dtype=str(buffers[0].dtype) if buffers else "float32",
    )


def _family(name: str) -> str:
    """The heaviest operator family that the kernel's name mentions; elementwise without one."""
    # TVM numbers kernels of one name: conv2d3 is the fourth conv2d.
    words = re.sub(r"\d+(?=_|$)", "", name.removeprefix("fused_"))
    found = (family for family, name in _FAMILIES if re.search(rf"(^|_){name}(_|$)", words))
    return next(found, "elementwise")


def _name_by_blocks(blocks: list[_BlockCost], anchor: _BlockCost | None) -> str:
    """A kernel's name, derived from TOPI's names of its blocks.

    The anchor of a convolution or a product is named after it (``conv2d_nhwc``, ``matmul``). That
    of a transposed convolution is not: the blocks that prepare its operands show it.
    """
    if anchor is None:
        return ""
    if {block.name for block in blocks} >= _TRANSPOSED_CONVOLUTION:
        spatial = [it for it in anchor.block.iter_vars if it.iter_type != _REDUCED]
        # All output axes but those of the batch and the channels.
        return f"conv{len(spatial) - 2}d_transpose"
    return anchor.name


def _variant(family: str, block: tvm.s_tir.SBlock) -> str:
    """Distinguish batched products from plain ones, and grouped convolutions from full ones.

    The block's indices decide, in every layout: an output axis that indexes both operands is the
    batch of matrices, or the group of channels. If no channel is summed within the group, the
    convolution is depthwise. Shapes do not suffice: a 1x1 convolution of 64 to 64 channels sums as
    many products as its bias has values.
    """
    if family != "dense" and not re.fullmatch(r"conv\dd", family):
        return family
    written = [region.source for region in block.writes]
    operands = [
        [set(tvm.tirx.analysis.undefined_vars(axis.min)) for axis in region.region]
        for region in block.reads
        if not any(region.source.same_as(tensor) for tensor in written)
    ]
    if len(operands) < 2:
        return family
    moving = [variable for variable in block.iter_vars if _constant(variable.dom.extent) > 1]
    summed = {it.var for it in moving if it.iter_type == _REDUCED}
    kept = {it.var for it in moving} - summed
    common = {var for var in kept if all(any(var in axis for axis in each) for each in operands)}
    if not common:
        return family
    if family == "dense":
        return "batch_matmul"
    sums_channels = any(axis & common and axis & summed for axes in operands for axis in axes)
    return f"group_{family}" if sums_channels else f"depthwise_{family}"


def _blocks(module: tvm.IRModule) -> list[_BlockCost]:
    schedule = tvm.s_tir.Schedule(module)
    found: list[_BlockCost] = []
    try:
        handles = schedule.get_child_blocks(schedule.get_sblock("root"))
    except tvm.s_tir.ScheduleError:
        return found  # sorting is loops without blocks, so that there is no root either
    for handle in handles:
        block = schedule.get(handle)
        points = reduction = 1
        for variable in block.iter_vars:
            extent = _constant(variable.dom.extent)
            points *= extent
            reduction *= extent if variable.iter_type == _REDUCED else 1
        found.append(_BlockCost(block, points, reduction))
    return found


def _constant(extent: object) -> int:
    """An extent as a number; 1 for one that is only known at run time."""
    value = getattr(extent, "value", extent)
    return value if isinstance(value, int) else 1


def kernel_calls(lowered: tvm.IRModule, *functions: str) -> list[tuple[str, list[relax.Expr]]]:
    """The kernels that these functions call, or all, with the arguments, in no stated order."""
    return [(call.args[0].name_hint, _arguments(call)) for call in _calls(lowered, *functions)]


def call_counts(lowered: tvm.IRModule) -> Counter[str]:
    """How often each kernel is called."""
    return Counter(name for name, _ in kernel_calls(lowered))


def model_functions(lowered: tvm.IRModule) -> list[str]:
    """The functions that call kernels: ``main``, and one for each further shape."""
    return [
        symbol.name_hint
        for symbol, function in lowered.functions_items()
        if isinstance(function, relax.Function)
    ]


def calls_by_function(lowered: tvm.IRModule) -> dict[str, Counter[str]]:
    """How often each function calls each kernel."""
    return {
        name: Counter(kernel for kernel, _ in kernel_calls(lowered, name))
        for name in model_functions(lowered)
    }


def calls_fit(lowered: tvm.IRModule) -> bool:
    """Whether every kernel is called with tensors of the shapes and types that it takes.

    TVM's ``well_formed`` compares with what it noted of a kernel when that was added, not with the
    kernel.
    """
    return all(_takes(lowered[call.args[0]], call) for call in _calls(lowered))


def _calls(lowered: tvm.IRModule, *functions: str) -> list[relax.Call]:
    found: list[relax.Call] = []

    def visit(expression: relax.Expr) -> None:
        is_call = isinstance(expression, relax.Call) and bool(expression.args)
        if is_call and isinstance(expression.args[0], tvm.ir.GlobalVar):
            found.append(expression)

    for name in functions or model_functions(lowered):
        relax.analysis.post_order_visit(lowered[name], visit)
    return found


def _arguments(call: relax.Call) -> list[relax.Expr]:
    return list(call.args[1].fields) if len(call.args) > 1 else []


def _takes(function: object, call: relax.Call) -> bool:
    """Whether a function is a kernel that takes a call's arguments and results."""
    if not isinstance(function, tvm.tirx.PrimFunc):
        return False
    results = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
    types = [*(each.ty for each in _arguments(call)), *results]
    return len(function.params) == len(types) and all(map(_fits, types, function.params))


def _fits(given: object, buffer: object) -> bool:
    """Whether a tensor of a static type is what a kernel takes."""
    if not isinstance(given, relax.TensorType) or not isinstance(buffer, tvm.tirx.Buffer):
        return False
    try:
        sizes = [[int(extent) for extent in each.shape] for each in (given, buffer)]
    except TypeError:  # an extent that only a run knows
        return False
    return sizes[0] == sizes[1] and str(given.dtype) == str(buffer.dtype) and not buffer.strides
