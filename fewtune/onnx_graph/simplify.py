"""Simplification of a bound model into the one that TVM imports: fewer and simpler nodes."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper, shape_inference, version_converter

from fewtune.onnx_graph.external_data import (
    LightModel,
    array_of,
    bring_in,
    is_apart,
    is_outside,
    light,
    reference,
)
from fewtune.onnx_graph.float16 import widen_float16
from fewtune.onnx_graph.graph import (
    all_nodes,
    all_tensors,
    attach_weights,
    attributes_of,
    copy_model,
    detach_weights,
    graph_inputs,
    opset_of,
    reads,
    set_attributes,
)
from fewtune.onnx_graph.operators.expand import EARLY, expand, expand_functions, inlined
from fewtune.onnx_graph.operators.recurrent import UNROLLED, UNROLLED_WITHOUT_KERNEL, has_layers
from fewtune.onnx_graph.quantized.lift import lift
from fewtune.onnx_graph.rewrites import rewrite
from fewtune.onnx_graph.rows import planes_of_rows
from fewtune.onnx_graph.views import join_slice_products, move_views
from fewtune.process.optional_steps import OptionalSteps

_logger = logging.getLogger(__name__)

# TVM's importer knows Slice, Resize, Pad and others only in the form of this operator set and
# later. It is not newer, because Softmax changes at 13 and its conversion adds nodes.
IMPORT_OPSET = 11

MINIMUM_IR_VERSION = 8

_FOLDING, _SYMBOLIC = "onnxslim", "onnxslim.third_party.symbolic_shape_infer"
# Of onnxslim, between which shapes are inferred: what one folds may let the next fold more.
_MOST_ROUNDS = 10
INTEGER_KERNELS = "integer_kernels"
HALVES_IN_FLOATS = "halves_in_floats"
RECURRENT_LAYERS = "recurrent_layers"
ROWS = "planes_of_rows"
_REWRITES: dict[str, Callable[[ModelProto], ModelProto]] = {
    "rewrites": rewrite,
    "moved_views": move_views,
    "products_of_slices": join_slice_products,
}
# Optional steps of `with_light_layers`, in order.
REWRITES = (HALVES_IN_FLOATS, ROWS, INTEGER_KERNELS, _FOLDING, *_REWRITES, RECURRENT_LAYERS)


def simplify(model: ModelProto) -> ModelProto:
    """Fold and rewrite a model with static shapes for TVM's importer.

    Parameters
    ----------
    model : ModelProto
        From `fewtune.onnx_graph.bind.bind_shapes`; it is left as it is.

    Returns
    -------
    model : ModelProto
        Same inputs, outputs and results. Operators that TVM lacks are expanded
        (`fewtune.onnx_graph.operators.expand`). Batch normalizations, dropouts, identities and
        constant subgraphs are folded. The rewrites follow.
    """
    return unrolled(with_light_layers(light(model)).whole())


def with_light_layers(model: LightModel, steps: OptionalSteps | None = None) -> LightModel:
    """As `simplify`, but keeps recurrent layers of which one kernel computes all steps.

    Weights are neither copied nor serialized.

    Parameters
    ----------
    model : LightModel
    steps : OptionalSteps, optional
        Which of `REWRITES` to use; all by default.
    """
    steps = steps or OptionalSteps()
    light_model, weights = detach_weights(model.model)
    if light_model.functions:
        with contextlib.suppress(Exception):  # what stays is reported by the importer, by name
            light_model = inlined(light_model)
    if opset_of(light_model) < IMPORT_OPSET:
        light_model = converted(light_model, IMPORT_OPSET)
    light_model = expand_functions(with_shapes(light_model))
    result = attach_weights(with_shapes(light_model), weights)
    result = steps.guarded(HALVES_IN_FLOATS, widen_float16, _unchanged)(result)
    result = expand(result, EARLY)
    result = steps.guarded(ROWS, planes_of_rows, _unchanged)(result)
    result = steps.guarded(INTEGER_KERNELS, lift, partial(lift, kernels=False))(result)
    slim = steps.guarded(_FOLDING, slimmed, light)(result)
    result = slim.model
    for name, rewritten in _REWRITES.items():
        result = steps.guarded(name, rewritten, _unchanged)(with_shapes(result))
    # Last: on thousands of unrolled steps the rewrites take minutes, and gain nothing.
    kept = partial(expand, handlers=UNROLLED_WITHOUT_KERNEL)
    result = steps.guarded(RECURRENT_LAYERS, kept, unrolled)(result)
    return light(_named(result))


def _unchanged(model: ModelProto) -> ModelProto:
    return model


def unrolled(model: ModelProto) -> ModelProto:
    """A simplified model with its recurrent layers unrolled."""
    return _named(expand(model, UNROLLED)) if has_layers(model) else model


def _named(model: ModelProto) -> ModelProto:
    """The model with inferred shapes, after every node got a name for errors."""
    for node in model.graph.node:
        node.name = node.name or node.output[0]
    return with_shapes(model)


def with_shapes(model: ModelProto) -> ModelProto:
    """The model with the shapes that ONNX infers; the model itself if inference fails."""
    light_model, weights = detach_weights(model)
    try:
        inferred = shape_inference.infer_shapes(light_model, data_prop=True)
        return attach_weights(inferred, weights)
    except Exception as error:  # noqa: BLE001 (a C++ pass; what is unknown stays unknown)
        _logger.debug("shape inference failed: %s", error)
        return model


def converted(model: ModelProto, opset: int) -> ModelProto:
    """The model at a newer opset; the model itself if onnx cannot convert it."""
    try:
        converted = version_converter.convert_version(model, opset)
        if opset_of(model) < IMPORT_OPSET <= opset:
            _keep_coordinates(converted)
        onnx.checker.check_model(converted)
    except Exception as error:  # noqa: BLE001 (a C++ pass)
        _logger.info("kept at opset %d: %s", opset_of(model), str(error).splitlines()[:1])
        return model
    converted.ir_version = max(converted.ir_version, model.ir_version)
    return converted


def _keep_coordinates(model: ModelProto) -> None:
    """Write out the coordinate modes of converted resizes, which have them since 11, in place.

    onnx's conversion (1.23) leaves them out, so that the new operator's defaults would apply.
    """
    nodes = list(all_nodes(model.graph))
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    given = {node.output[0]: attributes_of(node) for node in nodes if node.op_type == "Constant"}
    constants |= {name: each["value"] for name, each in given.items() if "value" in each}
    for node in nodes:
        if node.op_type == "Resize":
            scales = constants.get(node.input[2])
            shrinks = scales is not None and bool((numpy_helper.to_array(scales) < 1).any())
            # onnxruntime's rule.
            nearest = "ceil" if shrinks else "floor"
            mode = "asymmetric"
            set_attributes(node, coordinate_transformation_mode=mode, nearest_mode=nearest)


def slimmed(model: ModelProto) -> LightModel:
    """The model after onnxslim; as it is if onnxslim fails or changes its interface."""
    # For its own inference of shapes, which is not used, onnxslim loads SymPy: half its import.
    sys.modules.setdefault(_SYMBOLIC, cast(Any, SimpleNamespace(SymbolicShapeInference=None)))
    from onnxslim import core

    given, references = _foldable(model)
    try:
        with _mended_onnxslim(), contextlib.redirect_stdout(io.StringIO()):
            # Tying compares all small constants in pairs.
            core.OptimizationSettings.reset(["weight_tying"])
            for _ in range(_MOST_ROUNDS):
                # Its own inference of shapes takes longer than all the rest.
                count, made = len(given.graph.node), core.optimize(given)
                _straighten(made, references)
                shared = light(made)
                given = with_shapes(shared.model)
                if len(given.graph.node) == count:
                    break
        if _interface(given) != _interface(model):
            raise ValueError("it changed the inputs or outputs")
    except Exception as error:  # noqa: BLE001 (onnxslim raises many kinds)
        _logger.info("onnxslim failed, the model stays as it is: %s", error)
        return light(model)
    given.ir_version = max(given.ir_version, MINIMUM_IR_VERSION)
    return LightModel(given, shared.arrays)


def _foldable(model: ModelProto) -> tuple[ModelProto, dict[int, TensorProto]]:
    """A copy of a light model with the weights in it that onnxruntime may fold for onnxslim.

    The other weights' references are given by where their arrays are in memory.
    """
    copy, references = copy_model(model), {}
    # Values that depend on the inputs' values; no node that reads one is folded.
    moving, folded = {value.name for value in graph_inputs(model.graph)}, set[str]()
    for node in model.graph.node:
        read = reads(node)
        if moving.isdisjoint(read):
            folded |= read
        elif node.op_type not in ("Shape", "Size"):
            moving.update(node.output)
    for tensor in filter(is_outside, copy.graph.initializer):
        if tensor.name in folded:
            bring_in(tensor)
        else:
            references[array_of(tensor).ctypes.data] = tensor
    return copy, references


def _straighten(model: ModelProto, references: dict[int, TensorProto]) -> None:
    """Let products read weights that onnxslim has transposed as they were given, in place."""
    readers = Counter(name for node in all_nodes(model.graph) for name in node.input)
    products = {node.input[1]: node for node in model.graph.node if node.op_type == "Gemm"}
    own = {tensor.name for tensor in model.graph.initializer}
    for tensor in all_tensors(model):
        name, is_held = tensor.name, is_outside(tensor)
        # onnxslim writes the location of a weight that it has read for one that it has made.
        tensor.data_location = TensorProto.EXTERNAL if is_held else TensorProto.DEFAULT
        if is_held and name not in own:
            bring_in(tensor)  # a light model refers to weights of its main graph only
        elif is_held and name in products and readers[name] == 1:
            node, turned = products[name], array_of(tensor).T
            known = references.get(turned.ctypes.data, tensor)
            if array_of(known).shape == turned.shape and array_of(known).strides == turned.strides:
                tensor.CopyFrom(known)
                tensor.name = name
                set_attributes(node, transB=1 - attributes_of(node).get("transB", 0))


@contextlib.contextmanager
def _mended_onnxslim() -> Iterator[None]:
    """Within the block, onnxslim reads and writes large weights as light models refer to them.

    It adds a fused node without a walk over the whole graph for the names of its tensors.
    """
    from onnxslim.third_party.onnx_graphsurgeon import Graph, Node
    from onnxslim.third_party.onnx_graphsurgeon.exporters import onnx_exporter
    from onnxslim.third_party.onnx_graphsurgeon.ir.tensor import LazyValues

    load, layer = LazyValues.load, Graph.layer
    export, kept = onnx_exporter.constant_to_onnx_tensor, list[np.ndarray]()

    def exported(constant: Any) -> TensorProto:
        kind = onnx_exporter.dtype_to_onnx(constant.export_dtype)
        if not is_apart(kind, constant.values.nbytes):
            return export(constant)
        kept.append(constant.values)
        return reference(constant.name, kind, kept[-1])

    onnx_exporter.constant_to_onnx_tensor = exported
    LazyValues.load = lambda values: (
        array_of(values.tensor) if is_outside(values.tensor) else load(values)
    )
    Graph.layer = lambda graph, **node: graph.nodes.append(Node(**node))
    try:
        yield
    finally:
        LazyValues.load, Graph.layer = load, layer
        onnx_exporter.constant_to_onnx_tensor = export


def _interface(model: ModelProto) -> tuple[list[str], list[str]]:
    inputs = [value.name for value in graph_inputs(model.graph)]
    return inputs, [value.name for value in model.graph.output]
