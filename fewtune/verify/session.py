"""Sessions of onnxruntime, and the known shapes and types of a graph's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from onnx import ModelProto, ValueInfoProto, shape_inference

from fewtune.artifacts import TensorSpec
from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.graph import detach_weights, graph_inputs, static_shape, type_name
from fewtune.onnx_graph.messages import cannot_load, short_message
from fewtune.process.contexts import give_back_memory

# Above so many inputs they are bound; jitter has thousands.
_MANY_INPUTS = 64


class Value(NamedTuple):
    """Static shape and ONNX element type."""

    shape: list[int]
    element_type: int


def known_values(model: ModelProto) -> dict[str, Value]:
    """Values of the main graph whose type and static shape are declared or inferred."""
    known = _declared(model)
    if all(name in known for node in model.graph.node for name in node.output if name):
        return known
    light_model, _weights = detach_weights(model)
    with contextlib.suppress(Exception):  # what is declared is all that is known, then
        light_model = shape_inference.infer_shapes(light_model, data_prop=True)
    return _declared(light_model) | known


def _declared(model: ModelProto) -> dict[str, Value]:
    graph = model.graph
    values = {each.name: Value(list(each.dims), each.data_type) for each in graph.initializer}
    for value in [*graph.value_info, *graph.input, *graph.output]:
        shape = static_shape(value)
        if shape is not None and value.type.tensor_type.elem_type:
            values[value.name] = Value(shape, value.type.tensor_type.elem_type)
    return values


def tensor_specs(model: ModelProto) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs and outputs of a model with static shapes.

    Raises
    ------
    InputError
        If a shape is not static.
    """
    return _specs(graph_inputs(model.graph)), _specs(model.graph.output)


def _specs(values: Iterable[ValueInfoProto]) -> list[TensorSpec]:
    specs = []
    for value in values:
        shape = static_shape(value)
        if shape is None:
            raise InputError(f"the shape of {value.name!r} is not static: bind it first")
        dtype = type_name(value.type.tensor_type.elem_type)
        specs.append(TensorSpec(name=value.name, shape=shape, dtype=dtype))
    return specs


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, np.ndarray]:
    """Draw an array for every input.

    Floats are standard normal, booleans fair, uint8 (pixels) uniform. Other integers are 0 or 1,
    which are valid as token ids, as indices and in a mask.
    """
    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for spec in specs:
        dtype = np.dtype(spec.dtype)
        if dtype.kind == "f":
            arrays[spec.name] = np.asarray(generator.standard_normal(spec.shape)).astype(dtype)
        else:
            most = 256 if dtype == np.uint8 else 2
            arrays[spec.name] = np.asarray(generator.integers(0, most, spec.shape)).astype(dtype)
    return arrays


class OnnxruntimeSession:
    """A model in onnxruntime on the CPU, for many runs.

    Parameters
    ----------
    model : Path, ModelProto or LightModel
        Sessions of one light model share its weights.
    threads : int
        Threads within an operator; operators run one after the other.
    optimised : bool
        Whether onnxruntime may rewrite the graph.
    measured : bool
        Whether it has onnxruntime's defaults, as it is measured. Otherwise it is a reference:
        products with weights of few bits round nothing to bytes, and weights are not packed.

    Raises
    ------
    InputError
        If onnxruntime refuses the model.
    """

    def __init__(
        self,
        model: Path | ModelProto | LightModel,
        threads: int,
        optimised: bool = True,
        measured: bool = False,
    ) -> None:
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
        )
        options.log_severity_level = 3  # errors only
        if not measured:
            options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
            # Of a reference that runs a few times, packed copies of all weights gain nothing.
            options.add_session_config_entry("session.disable_prepacking", "1")
            # Between its runs Python works, for which its threads would wait at full load.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source: str | bytes = str(model) if isinstance(model, Path) else b""
        if not isinstance(model, Path):
            given, arrays = light(model)
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in arrays.values()]
            options.add_external_initializers(list(arrays), values)
            # The former is for rewrites of the graph; it alone would copy each weight.
            for name, value in zip(arrays, values, strict=True):
                options.add_initializer(name, value)
            source = given.SerializeToString()
            # The session reads the arrays in place, so they must live as long as it does.
            self._held = arrays, values
        try:
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(source, options, providers=providers)
        except Exception as error:  # noqa: BLE001 (onnxruntime raises a class a status)
            raise InputError(cannot_load(error)) from None
        # While it is loaded, onnxruntime copies weights.
        give_back_memory()

    def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the model once; outputs in the order of the graph.

        Raises
        ------
        InputError
            If onnxruntime fails on these inputs.
        """
        try:
            if len(inputs) > _MANY_INPUTS:
                return self._bound(inputs)
            return self._session.run(None, inputs)
        except Exception as error:  # noqa: BLE001 (onnxruntime raises a class a status)
            raise InputError(f"onnxruntime cannot run the model: {short_message(error)}") from None

    def _bound(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """As `run`, which compares the names of all inputs in pairs."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, value)
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        self._session.run_with_iobinding(binding)
        found: list[np.ndarray] = binding.copy_outputs_to_cpu()
        return found


def run_onnxruntime(
    model: Path | ModelProto, inputs: dict[str, np.ndarray], threads: int
) -> list[np.ndarray]:
    """Run a model once; see `OnnxruntimeSession`."""
    return OnnxruntimeSession(model, threads).run(inputs)
