"""Lowers a simplified ONNX graph to fused TensorIR kernels; most of the steps are optional."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any, Literal

import onnx

from fewtune.errors import InputError, last_line
from fewtune.model import float16_weights
from fewtune.model.folding import unoptimised_folding
from fewtune.model.passes import pad_matmul
from fewtune.model.passes.added_converters import added_converters
from fewtune.model.passes.choose_winograd import winograd_legalizer
from fewtune.model.passes.converters import STEP as LAYOUT_FRIENDLY
from fewtune.model.passes.converters import layout_friendly
from fewtune.model.passes.convolutions import transposed, volumes
from fewtune.model.passes.integer_epilogues import integer_epilogues
from fewtune.model.passes.integer_products import integer_kernels
from fewtune.model.passes.pad_filters import Padding
from fewtune.model.passes.pad_softmax import padded_softmax
from fewtune.model.passes.permutes import with_moved_constants, without_redundant_permutes
from fewtune.model.passes.sampling import long_sums, resize
from fewtune.model.passes.winograd import Convolution
from fewtune.model.unsupported import UnsupportedError, UnsupportedNode, explain, operator_of
from fewtune.onnx_graph.graph import static_shape
from fewtune.onnx_graph.simplify import INTEGER_KERNELS
from fewtune.process.apart import at
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime import vector_math
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import module_pass
from fewtune.runtime.target import has_own_device
from fewtune.runtime.tvm import has_feature, relax, tvm
from fewtune.task import weight_layout

NHWC, WINOGRAD, PAD_FILTERS, PAD_MATMUL = "nhwc", "winograd", "pad_filters", "pad_matmul"
_PAD_SOFTMAX, _IDLE_PERMUTES, _FREE_LAYOUT = "pad_softmax", "idle_permutes", "free_weight_layout"
_VECTOR_FUNCTIONS, TRANSPOSED = "vector_functions", "transposed_convolutions"
_HALF_WEIGHTS, _LONG_SUMS = "half_weights", "long_sums"
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
    _HALF_WEIGHTS,
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
_CONVOLUTION, _PRODUCT = "relax.nn.conv2d", "relax.matmul"
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose"})
# The size of their output depends on the values of the input.
_SIZED_BY_VALUES = frozenset({"Compress", "NonZero", "Unique"})


def lower(
    model: onnx.ModelProto,
    target: tvm.target.Target,
    layout: Literal["NHWC", "NCHW"],
    tile_of: Callable[[Convolution], int] | None = None,
    padding: Padding | None = None,
    steps: OptionalSteps | None = None,
) -> tvm.IRModule:
    """Import an ONNX graph into Relax and lower it to fused kernels.

    Parameters
    ----------
    model : onnx.ModelProto
        Static shapes, simplified (`fewtune.onnx_graph.simplify.simplify`).
    target : tvm.target.Target
    layout : {"NHWC", "NCHW"}
        Layout that 2-D convolutions run in.
    tile_of : callable, optional
        Gives the tile of a 3x3 convolution by Winograd's transforms, 0 for direct convolution
        (`fewtune.model.passes.choose_winograd.winograd_legalizer`).
    padding : Padding, optional
        Pads the filters of convolutions in NHWC and the extents of products, and records them.
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
    at("TVM was importing the graph")
    traits = None if has_own_device(target) else CpuTraits.of(target)
    module = _relax_of(model, steps, traits)
    # The time of the conversion grows with the square of the number of kernels: minutes for an
    # unrolled sequence of thousands.
    is_convolutional = any(node.op_type in _CONVOLUTIONS for node in model.graph.node)
    converts = layout == "NHWC" and is_convolutional

    def integers(given: tvm.IRModule) -> tvm.IRModule:
        assert traits is not None
        return integer_epilogues(integer_kernels(given, target, traits))

    legalizers = _legalizers(steps, tile_of, padding, target, traits)
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        *_step(steps, NHWC, _layout_conversion(steps, traits), converts),
        relax.transform.Normalize(),
        *_step(steps, _IDLE_PERMUTES, module_pass(without_redundant_permutes)),
        module_pass(with_moved_constants),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        relax.transform.FoldConstant(),
        *_step(steps, INTEGER_KERNELS, module_pass(integers), traits is not None),
        relax.transform.DeadCodeElimination(),
        relax.transform.LegalizeOps(legalizers),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
    ]
    at("TVM was lowering the graph to kernels")
    with target, tvm.transform.PassContext(opt_level=3), unoptimised_folding():
        lowered = tvm.transform.Sequential(passes)(module)
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
        if not isinstance(function, tvm.tirx.PrimFunc):
            continue
        for buffer in function.params:
            if not all(isinstance(extent, tvm.tirx.IntImm) for extent in buffer.shape):
                raise ValueError(
                    f"TVM makes kernel {symbol.name_hint!r} of it, whose shapes only a run knows"
                )


def _relax_of(
    model: onnx.ModelProto, steps: OptionalSteps, traits: CpuTraits | None
) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    resize.register()
    with contextlib.ExitStack() as stack:
        stack.enter_context(added_converters(traits))
        stack.enter_context(layout_friendly(steps))
        stack.enter_context(_operators_named())
        # The importer prints the operator on which it fails.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        _refuse_unknown_operators(model)
        return from_onnx(model, keep_params_in_input=False)


def _layout_conversion(steps: OptionalSteps, traits: CpuTraits | None) -> tvm.transform.Pass:
    """To NHWC, with the transposed convolutions that have a form in it."""
    if traits is None or not steps.uses(TRANSPOSED):
        return relax.transform.ConvertLayout(_NHWC)
    layouts_of = steps.guarded(TRANSPOSED, transposed.layouts(_NHWC), lambda _: _NHWC)
    return relax.transform.ConvertLayout(_NHWC, layouts_of)


def _legalizers(
    steps: OptionalSteps,
    tile_of: Callable[[Convolution], int] | None,
    padding: Padding | None,
    target: tvm.target.Target,
    traits: CpuTraits | None,
) -> dict[str, Any]:
    """Legalisers by operator; each is an optional step that falls back on the one before it."""
    found: dict[str, Any] = {}

    def fallback(operator: str) -> Any:
        return found.get(operator, tvm.ir.Op.get(operator).get_attr("FLegalize"))

    def add(step: str, ours: dict[str, Any]) -> None:
        for operator, legalizer in ours.items():
            found[operator] = steps.guarded(step, legalizer, fallback(operator))

    if traits is not None:
        add(_LONG_SUMS, long_sums.legalizers(fallback))
        add(_PAD_SOFTMAX, padded_softmax(traits.lanes("float32")))
    if padding is not None:
        add(PAD_FILTERS, {_CONVOLUTION: padding.legalizer(fallback(_CONVOLUTION))})
        if traits is not None:
            add(PAD_MATMUL, pad_matmul.legalizer(padding, traits))
    if all(has_feature(target, feature) for feature in float16_weights.FEATURES):
        add(_HALF_WEIGHTS, {_PRODUCT: float16_weights.legalizer(fallback(_PRODUCT))})
    if tile_of is not None:
        transforms = winograd_legalizer(tile_of, fallback(_CONVOLUTION), traits)
        add(WINOGRAD, {_CONVOLUTION: transforms})
    if traits is not None:
        ours = transposed.legalizer(fallback(_CONVOLUTION), fallback(transposed.OPERATOR))
        of_volumes = volumes.legalizer(fallback(volumes.OPERATOR))
        add(TRANSPOSED, {transposed.OPERATOR: ours, volumes.OPERATOR: of_volumes})
    return found


def _step(
    steps: OptionalSteps, name: str, step: tvm.transform.Pass, wanted: bool = True
) -> list[tvm.transform.Pass]:
    """A pass as an optional step."""
    if not wanted or not steps.uses(name):
        return []

    def apply(module: tvm.IRModule) -> tvm.IRModule:
        with steps.step(name):
            return step(module)

    return [module_pass(apply)]


def _refuse_unknown_operators(model: onnx.ModelProto) -> None:
    from tvm.relax.frontend.onnx import onnx_frontend

    # TVM names its converters in no other way.
    known = {*onnx_frontend._get_convert_map(), "If", "Constant"}
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
        nodes.append(UnsupportedNode(node.name or node.output[0], operator_of(node), reason))
    if nodes:
        raise UnsupportedError(explain(nodes), nodes)


@contextlib.contextmanager
def _operators_named() -> Iterator[None]:
    """Within the block, exceptions of TVM's importer name operator and node."""
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    # A converter's error names no operator, and TVM has no other place to add one.
    theirs = ONNXGraphImporter._convert_operator

    @functools.wraps(theirs)
    def converted(importer: Any, operator: str, inputs: Any, attributes: Any, opset: int) -> Any:
        name = attributes.get("tvm_custom", {}).get("name", "")
        at(f"TVM was importing operator {operator} (node {name!r})")
        try:
            return theirs(importer, operator, inputs, attributes, opset)
        except InputError:
            raise
        except Exception as fault:
            nodes = [UnsupportedNode(name, operator, last_line(fault))]
            raise UnsupportedError(explain(nodes), nodes) from fault

    ONNXGraphImporter._convert_operator = converted
    try:
        yield
    finally:
        ONNXGraphImporter._convert_operator = theirs
