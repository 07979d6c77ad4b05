"""Lowers ONNX graphs to fused TensorIR kernels, with every optional step that works on a model."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from fewtune.artifacts import UnsupportedNode
from fewtune.errors import FewtuneError, InputError, last_line
from fewtune.model.converters import resize
from fewtune.model.converters.registry import LAYOUT_FRIENDLY, converters
from fewtune.model.passes import fusion, legalizers, scatter, transposed
from fewtune.model.passes.integer_products import integer_epilogues, integer_kernels
from fewtune.model.passes.padding import Padding, padded_convolution, padded_product
from fewtune.model.passes.permutes import with_moved_constants, without_redundant_permutes
from fewtune.model.passes.relax_calls import FLOAT
from fewtune.model.passes.winograd import Winograd
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.external_data import LightModel, array_of, light
from fewtune.onnx_graph.float16 import has_float16
from fewtune.onnx_graph.graph import all_tensors, operator_name, reads, static_shape, tensor_bytes
from fewtune.onnx_graph.operators.recurrent import has_layers
from fewtune.onnx_graph.simplify import INTEGER_KERNELS
from fewtune.options import ImportOptions
from fewtune.process.apart import at
from fewtune.process.contexts import give_back_memory
from fewtune.process.optional_steps import OptionalSteps, with_most_steps
from fewtune.runtime import vector_math
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import CompiledModel, build_executable, module_pass
from fewtune.runtime.kernel_store import LINKING, KernelStore, linking, loaded
from fewtune.runtime.target import has_own_device, host_target, is_foreign, tvm_device
from fewtune.runtime.tvm import relax, tvm, usable_cores
from fewtune.schedule.defaults import apply_default_schedules
from fewtune.task import weight_layout
from fewtune.task.analysis import call_counts, calls_fit
from fewtune.tvm_compat import folding
from fewtune.tvm_compat.onnx_importer import known_operators, with_converters
from fewtune.util.switches import VARIABLE, switched_off

_IMPORTING = "importing the graph"
Layout = Literal["NHWC", "NCHW"]

NHWC, WINOGRAD, PAD_FILTERS, PAD_MATMUL = "nhwc", "winograd", "pad_filters", "pad_matmul"
TRANSPOSED, _LONG_SUMS, _PAD_SOFTMAX = "transposed_convolutions", "long_sums", "pad_softmax"
_IDLE_PERMUTES, _FREE_LAYOUT = "idle_permutes", "free_weight_layout"
_VECTOR_FUNCTIONS = "vector_functions"
# Optional steps; a step comes before those that depend on it.
LOWERINGS = (
    LAYOUT_FRIENDLY,
    NHWC,
    TRANSPOSED,
    _IDLE_PERMUTES,
    _LONG_SUMS,
    _PAD_SOFTMAX,
    PAD_MATMUL,
    PAD_FILTERS,
    WINOGRAD,
    _FREE_LAYOUT,
    _VECTOR_FUNCTIONS,
)
# TVM 0.27 has no transposed convolutions in NHWC: those without another form (`transposed`) keep
# their layout.
_NHWC = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    transposed.OPERATOR: ["NCHW", "IOHW"],
}
_CONVOLUTION, _PRODUCT, _SOFTMAX = "relax.nn.conv2d", "relax.matmul", "relax.nn.softmax"
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
# The size of their output depends on the values of the input.
_SIZED_BY_VALUES = frozenset({"Compress", "NonZero", "Unique"})


def lower(
    model: onnx.ModelProto | LightModel,
    target: tvm.target.Target,
    layout: Layout,
    winograd: Winograd | None = None,
    padding: Padding | None = None,
    steps: OptionalSteps | None = None,
) -> tvm.IRModule:
    """Import an ONNX graph into Relax and lower it to fused kernels.

    Parameters
    ----------
    model : ModelProto or LightModel
        Static shapes, simplified (`fewtune.onnx_graph.simplify.simplify`).
    target : tvm.target.Target
    layout : {"NHWC", "NCHW"}
        Layout that 2-D convolutions run in.
    winograd : Winograd, optional
        Computes 3x3 convolutions in NHWC by transforms, and counts them.
    padding : Padding, optional
        Pads, in NHWC, the filters of convolutions and the extents of products, and counts them.
    steps : OptionalSteps, optional
        Which of `LOWERINGS` to use; all by default.

    Returns
    -------
    lowered : tvm.IRModule
        ``main`` calls fused TensorIR kernels; weights are constants inside it.

    Raises
    ------
    InputError
        If TVM cannot import an operator.
    """
    steps = steps or OptionalSteps()
    at(_IMPORTING)
    traits = None if has_own_device(target) else CpuTraits.of(target)
    # The time of the conversion grows with the square of the number of kernels: minutes for an
    # unrolled sequence of thousands.
    graph, _arrays = light(model)
    is_convolutional = any(node.op_type in _CONVOLUTIONS for node in graph.graph.node)
    converts = layout == "NHWC" and is_convolutional
    # What the graph is imported as is not kept.
    given = [_relax_of(graph, steps, traits)]
    give_back_memory()

    if layout == "NCHW":
        winograd = padding = None

    def integers(given: tvm.IRModule) -> tvm.IRModule:
        assert traits is not None
        return integer_epilogues(integer_kernels(given, traits))

    def planned(given: tvm.IRModule) -> tvm.IRModule:
        if winograd is not None and traits is not None:
            winograd.plan(given, traits)
        return given

    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        *_step(steps, NHWC, _layout_conversion(steps, traits), converts),
        relax.transform.Normalize(),
        *_step(steps, _IDLE_PERMUTES, module_pass(without_redundant_permutes)),
        module_pass(with_moved_constants),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        module_pass(folding.fold),
        *_step(steps, INTEGER_KERNELS, module_pass(integers), traits is not None),
        relax.transform.DeadCodeElimination(),
        *_step(steps, WINOGRAD, module_pass(planned)),
        relax.transform.LegalizeOps(_legalizers(steps, traits, winograd, padding)),
        relax.transform.AnnotateTIROpPattern(),
        module_pass(folding.fold),
        module_pass(fusion.fuse),
        relax.transform.DeadCodeElimination(),
    ]
    at("lowering the graph to kernels")
    with target, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.transform.Sequential(passes)(given.pop())
    give_back_memory()
    _refuse_open_shapes(lowered)
    if traits is not None and not steps.uses(_VECTOR_FUNCTIONS):
        lowered = vector_math.left_to_library(lowered)
    if traits is None or not steps.uses(_FREE_LAYOUT):
        # Only MetaSchedule's rules for CPUs move weights.
        return lowered
    with steps.step(_FREE_LAYOUT):
        return weight_layout.mark(lowered)


def _refuse_open_shapes(lowered: tvm.IRModule) -> None:
    """Refuse kernels whose shapes are not static: they can be neither scheduled nor measured."""
    for symbol, function in lowered.functions_items():
        buffers = function.params if isinstance(function, tvm.tirx.PrimFunc) else ()
        extents = (extent for buffer in buffers for extent in buffer.shape)
        if not all(isinstance(extent, tvm.tirx.IntImm) for extent in extents):
            raise ValueError(f"TVM makes kernel {symbol.name_hint!r} of it, {OPEN_SHAPES}")


def _relax_of(
    model: onnx.ModelProto, steps: OptionalSteps, traits: CpuTraits | None
) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    # The importer prints the operator on which it fails.
    printed = contextlib.redirect_stdout(io.StringIO())
    with with_converters(converters(traits, steps), _named, array_of), printed:
        _refuse_unknown_operators(model)
        return from_onnx(model, keep_params_in_input=False)


@contextlib.contextmanager
def _named(operator: str, name: str) -> Iterator[None]:
    """Within the block, exceptions name a node."""
    at(_IMPORTING, f"operator {operator} (node {name!r})")
    try:
        yield
    except InputError:
        raise
    except Exception as fault:
        nodes = [UnsupportedNode(node=name, operator=operator, reason=last_line(fault))]
        raise UnsupportedError(explain(nodes), nodes) from fault


def _layout_conversion(steps: OptionalSteps, traits: CpuTraits | None) -> tvm.transform.Pass:
    """To NHWC, with the transposed convolutions that have a form in it."""
    if traits is None or not steps.uses(TRANSPOSED):
        return relax.transform.ConvertLayout(_NHWC)
    layouts_of = steps.guarded(TRANSPOSED, transposed.layouts(_NHWC), lambda _: _NHWC)
    return relax.transform.ConvertLayout(_NHWC, layouts_of)


def _legalizers(
    steps: OptionalSteps,
    traits: CpuTraits | None,
    winograd: Winograd | None,
    padding: Padding | None,
) -> dict[str, Any]:
    """Legalizers by operator; each is an optional step that falls back on the one before it."""
    found: dict[str, Any] = {
        **{name: legalizers.once(usual) for name, usual in folding.legalizers().items()},
        resize.OPERATOR: resize.legalized,
        **legalizers.SAFE_INDICES,
    }

    def present(operator: str) -> Any:
        return found.get(operator, tvm.ir.Op.get(operator).get_attr("FLegalize"))

    def add(step: str, operator: str, make: Callable[..., Any], *given: Any) -> None:
        fallback = present(operator)
        found[operator] = steps.guarded(step, make(*given, fallback), fallback)

    # Only CPUs have schedules for transforms, and vectors to fill.
    if traits is None:
        return found
    found[scatter.OPERATOR] = partial(legalizers.within, kernel=scatter.of_rows(traits))
    if padding is not None:
        add(PAD_FILTERS, _CONVOLUTION, padding.legalizer, padded_convolution, traits)
        add(PAD_MATMUL, _PRODUCT, padding.legalizer, padded_product, traits)
    if winograd is not None:
        add(WINOGRAD, _CONVOLUTION, winograd.convolutions, traits)
    for operator in legalizers.SUMS:
        add(_LONG_SUMS, operator, legalizers.long_sum, operator)
    add(_PAD_SOFTMAX, _SOFTMAX, legalizers.padded_softmax, traits.lanes(FLOAT))
    add(TRANSPOSED, transposed.OPERATOR, transposed.legalizer, present(_CONVOLUTION))
    return found


def _step(
    steps: OptionalSteps, name: str, step: tvm.transform.Pass, wanted: bool = True
) -> list[tvm.transform.Pass]:
    """A pass as an optional step."""
    return [module_pass(steps.guarded(name, step, lambda module: module))] if wanted else []


def _refuse_unknown_operators(model: onnx.ModelProto) -> None:
    known = known_operators()
    values = [*model.graph.value_info, *model.graph.output]
    open_names = {value.name for value in values if static_shape(value) is None}
    open_names |= {name for n in model.graph.node for name in n.output} - {v.name for v in values}
    nodes = []
    for node in model.graph.node:
        if node.op_type not in known:
            reason = "TVM's importer does not have this operator"
        elif node.op_type in _SIZED_BY_VALUES and open_names & set(node.output):
            reason = "the size of its output depends on the input's values"
        else:
            continue
        name = node.name or node.output[0]
        nodes.append(UnsupportedNode(node=name, operator=operator_name(node), reason=reason))
    if nodes:
        raise UnsupportedError(explain(nodes), nodes)


Found = TypeVar("Found")

_DEFAULT_SCHEDULES = "default_schedules"
# Of what a library may grow by; code takes the rest: 0.3 MB of SqueezeNet's 7.8.
_FOR_WEIGHTS = 0.9
# All optional steps of an import; a step comes before those that depend on it.
STEPS = (*prepare.REWRITES, *LOWERINGS, _DEFAULT_SCHEDULES)


@dataclass(frozen=True)
class Lowered(Generic[Found]):
    """A lowered model that was built with default schedules, and whose outputs are right.

    Attributes
    ----------
    module : IRModule
        Fused kernels without schedules.
    found
        The result of the check.
    simplified : LightModel
    layout : {"NHWC", "NCHW"}
    winograd, padding
        What was computed by transforms, and what was padded.
    left_out : dict of str
        Optional steps that failed on this model, or are not used, with the reason.
    """

    module: tvm.IRModule
    found: Found
    simplified: LightModel
    layout: Layout
    winograd: Winograd
    padding: Padding
    left_out: dict[str, str] = field(default_factory=dict)


def lower_checked(
    bound: onnx.ModelProto | LightModel,
    target: tvm.target.Target,
    options: ImportOptions,
    check: Callable[[CompiledModel], Found],
    left_out: Mapping[str, str] | None = None,
    presimplified: LightModel | None = None,
) -> Lowered[Found]:
    """Lower a model with every optional step that works on it.

    A step that raises is left out, and so is one that makes outputs wrong. Without any optional
    step, this is plain TVM.

    Parameters
    ----------
    bound : ModelProto or LightModel
        From `fewtune.onnx_graph.bind.bind_shapes`.
    target : Target
    options : ImportOptions
    check : callable
        Runs the compiled model and returns the difference of its outputs; raises
        `VerificationError` if that is too large.
    left_out : mapping, optional
        Steps known to fail on this model, with the reason.
    presimplified : LightModel, optional
        The model after all rewrites of ONNX graphs, recurrent layers kept; only if none failed.

    Raises
    ------
    InputError
        If an operator cannot be imported.
    VerificationError
        If plain TVM's outputs are wrong.
    """
    known, given = dict(left_out or {}), light(bound)
    schedules: dict[int, tvm.tirx.PrimFunc | None] = {}

    def attempt(steps: OptionalSteps) -> Lowered[Found]:
        """Lower, build and check the model with some of the optional steps."""
        at("simplifying the graph")
        simplified = presimplified
        if simplified is None or not all(map(steps.uses, prepare.REWRITES)):
            simplified = prepare.with_light_layers(given, steps)
        layout: Layout = "NHWC" if steps.uses(NHWC) else "NCHW"
        weight_bytes = sum(map(tensor_bytes, all_tensors(given.model)))
        winograd = Winograd(most_bytes=_FOR_WEIGHTS * (options.most_growth - 1) * weight_bytes)
        padding = Padding()
        lowered = lower(simplified, target, layout, winograd, padding, steps)
        here, scheduled = checking_target(target), lowered
        if steps.uses(_DEFAULT_SCHEDULES):
            with steps.step(_DEFAULT_SCHEDULES):
                at("giving kernels their default schedules")
                names = list(call_counts(lowered))
                scheduled = apply_default_schedules(lowered, names, here, schedules)
                if not has_own_device(target):
                    scheduled = weight_layout.fold(scheduled)
        at("compiling the kernels")
        # This library is run a few times and dropped, and what its kernels would check in every
        # call, their arguments, takes LLVM a third of the time.
        executable = _built(scheduled, here)
        at("comparing outputs with onnxruntime's")
        found = check(CompiledModel(executable, here))
        return Lowered(lowered, found, simplified, layout, winograd, padding)

    try:
        if has_own_device(target) and has_float16(given.model):
            known[prepare.HALVES_IN_FLOATS] = "a GPU computes in half precision"
        if has_own_device(target) and has_layers(given.model):
            known[prepare.RECURRENT_LAYERS] = "its kernel is for CPUs only"
        made, failed = with_most_steps(
            attempt, STEPS, _disabled(options) | known, quick=(_DEFAULT_SCHEDULES,)
        )
    except FewtuneError:
        raise
    except Exception as fault:
        nodes = unsupported_nodes(prepare.simplify(given.whole()), target)
        if nodes:
            raise UnsupportedError(explain(nodes), nodes) from fault
        reason = f"TVM cannot compile this model, but each of its nodes alone: {last_line(fault)}"
        raise InputError(reason) from fault
    return replace(made, left_out=known | failed)


def _built(scheduled: tvm.IRModule, here: tvm.target.Target) -> relax.VMExecutable:
    """A model that can be run here; its kernels are kept, as checks of schedules need them."""
    fits = calls_fit(scheduled)
    if not fits or (store := KernelStore.of(here)) is None:
        return build_executable(scheduled, here, has_asserts=not fits)
    objects: dict[str, Path] = {}
    with linking(store, objects):
        executable = build_executable(scheduled, here, pipeline=LINKING)
    if objects:
        executable.mod.import_module(loaded(objects))
    return executable


def checking_target(target: tvm.target.Target) -> tvm.target.Target:
    """The target for which a model is compiled to be checked: its own, if that can run here."""
    runs_here = not is_foreign(target) and tvm_device(target).exist
    return target if runs_here else host_target(usable_cores())


def _disabled(options: ImportOptions) -> dict[str, str]:
    """Steps that the options disable, with the reason."""
    found = dict.fromkeys(switched_off(), f"{VARIABLE} names it")
    if options.layout == "NCHW":
        found[NHWC] = "import_model.layout is NCHW"
    if options.winograd == "never":
        found[WINOGRAD] = "import_model.winograd is never"
    if options.pad_filters == "never":
        found |= dict.fromkeys((PAD_FILTERS, PAD_MATMUL), "import_model.pad_filters is never")
    return found


# The nodes that TVM cannot import

# Of messages where sizes depend on values, such as those of a Slice by an input: TVM's and ours.
OPEN_SHAPES = "whose shapes only a run knows"
_OPEN_SIZE_MARKS = ("shape_func", OPEN_SHAPES)
_OPEN_SIZE = "the values that it reads choose its places or its size while the model runs"


class UnsupportedError(InputError):
    """A model holds nodes that cannot be imported.

    Attributes
    ----------
    unsupported : list of UnsupportedNode
        All of them.
    """

    def __init__(self, message: str, unsupported: list[UnsupportedNode]) -> None:
        super().__init__(message)
        self.unsupported = unsupported


def unsupported_nodes(model: ModelProto, target: tvm.target.Target) -> list[UnsupportedNode]:
    """Try every node of a model alone, with the constants that it reads.

    Nodes that differ in names only are tried once.

    Parameters
    ----------
    model : ModelProto
        Simplified, with static shapes.
    target : Target

    Returns
    -------
    nodes : list of UnsupportedNode
        In the order of the graph.
    """
    graph = model.graph
    values = {value.name: value for value in [*graph.input, *graph.value_info, *graph.output]}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    reasons: dict[Hashable, str | None] = {}
    found = []
    for node in graph.node:
        alone = _alone(model, node, values, weights)
        if alone is None:
            continue
        key = _signature(node, alone)
        if key not in reasons:
            try:
                lower(alone, target, "NCHW")
                reasons[key] = None
            except Exception as fault:  # noqa: BLE001 (converters and passes raise many kinds)
                line = last_line(fault)
                reasons[key] = _OPEN_SIZE if any(m in line for m in _OPEN_SIZE_MARKS) else line
        reason = reasons[key]
        if reason is not None:
            operator = operator_name(node)
            found.append(UnsupportedNode(node=node.name, operator=operator, reason=reason))
    return found


def explain(nodes: list[UnsupportedNode]) -> str:
    """A sentence that names all unsupported nodes, by operator."""
    by_operator: dict[str, list[UnsupportedNode]] = {}
    for node in nodes:
        by_operator.setdefault(node.operator, []).append(node)
    parts = []
    for operator, group in by_operator.items():
        names = ", ".join(repr(node.node) for node in group[:5])
        more = f" and {len(group) - 5} more" if len(group) > 5 else ""
        parts.append(f"operator {operator} (node {names}{more}: {group[0].reason})")
    return (
        f"{'; '.join(parts)} cannot be imported: export the model without such nodes, or end it "
        "before the first of them"
    )


def _alone(
    model: ModelProto,
    node: NodeProto,
    values: dict[str, ValueInfoProto],
    weights: dict[str, TensorProto],
) -> ModelProto | None:
    """A model of one node; None if the shape of an input or output is not known."""
    names = sorted(reads(node))
    inputs = [name for name in names if name not in weights]
    outputs = [name for name in node.output if name]
    if any(name not in values for name in [*inputs, *outputs]):
        return None
    graph = helper.make_graph(
        [node],
        "alone",
        [values[name] for name in inputs],
        [values[name] for name in outputs],
        [weights[name] for name in names if name in weights],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import)
    alone.ir_version = model.ir_version
    return alone


def _signature(node: NodeProto, alone: ModelProto) -> Hashable:
    """A key that is equal for nodes that differ in names and weights only."""
    attributes = sorted(each.SerializeToString() for each in node.attribute)
    types = (each.type.SerializeToString() for each in [*alone.graph.input, *alone.graph.output])
    weights = []
    for tensor in alone.graph.initializer:
        is_size = helper.tensor_dtype_to_np_dtype(tensor.data_type).kind in "iub"
        content = numpy_helper.to_array(tensor).tobytes() if is_size else b""
        weights.append((tensor.data_type, *tensor.dims, content))
    given = tuple(map(bool, node.input))
    return (operator_name(node), given, *attributes, *types, *weights)
