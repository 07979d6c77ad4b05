"""Sessions of onnxruntime, and what it says of a model that it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto

from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.graph import all_nodes, attributes_of
from fewtune.onnx_graph.unsigned_weights import with_unsigned_weights
from fewtune.process.contexts import give_back_memory

# Above so many inputs they are bound; jitter has thousands.
_MANY_INPUTS = 64
# Text that onnxruntime puts around its messages.
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|Status Message: "
    r"|Exception during initialization: |/onnxruntime_src/\S+:\d+ [^)]*\) "
    r"|Non-zero status code returned while running "
)
_LONGEST = 300


class OnnxruntimeSession:
    """A model in onnxruntime on the CPU, for many runs.

    Parameters
    ----------
    model : Path, ModelProto or LightModel
        Sessions of one light model share its weights.
    threads : int
        Threads within an operator, 0 for one a core; operators run one after the other.
    optimised : bool
        Whether onnxruntime may rewrite the graph.
    measured : bool
        Whether it has onnxruntime's defaults, as it is measured. Otherwise it is a reference:
        products of bytes do not saturate, those with weights of few bits round nothing to bytes,
        and weights are not packed.

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
        options.log_severity_level = 4  # the exception of a failed run says enough
        if not measured:
            options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
            # Of a reference that runs a few times, packed copies of all weights gain nothing.
            options.add_session_config_entry("session.disable_prepacking", "1")
            # Between its runs Python works, for which its threads would wait at full load.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        source: str | bytes = str(model) if isinstance(model, Path) else b""
        if not isinstance(model, Path):
            given, arrays = light(model)
            if not measured:
                given, arrays = with_unsigned_weights(LightModel(given, arrays))
                if any(map(_adds_rows, all_nodes(given.graph))):
                    options.intra_op_num_threads = 1
            # onnxruntime would own a copy of a transposed view, and takes no weights that it owns.
            arrays = {name: np.asarray(each, order="C") for name, each in arrays.items()}
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in arrays.values()]
            options.add_external_initializers(list(arrays), values)
            # The former is for rewrites of the graph; it alone would copy each weight.
            for name, value in zip(arrays, values, strict=True):
                options.add_initializer(name, value)
            source = given.SerializeToString()
            # The session reads the arrays in place, so they must live as long as it does.
            self._held = arrays, values
        try:
            self._session = _loaded(source, options)
        except Exception as error:  # noqa: BLE001 (onnxruntime raises a class a status)
            if measured or not optimised:
                raise InputError(cannot_load(error)) from None
            # Its optimiser loses some values that are asked for (1.31).
            options.graph_optimization_level = levels.ORT_DISABLE_ALL
            try:
                self._session = _loaded(source, options)
            except Exception:  # noqa: BLE001 (as above)
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


def _loaded(source: str | bytes, options: Any) -> Any:
    # It would print its first error, and try the same again.
    only = {"providers": ["CPUExecutionProvider"], "enable_fallback": 0}
    return onnxruntime.InferenceSession(source, options, **only)


def _adds_rows(node: NodeProto) -> bool:
    """Whether onnxruntime's threads lose updates of one row by each other (1.31)."""
    return node.op_type == "ScatterND" and "reduction" in attributes_of(node)


def cannot_load(error: Exception) -> str:
    """Why a model is refused if onnxruntime, which is the reference, does not load it."""
    return (
        f"onnxruntime cannot load the model: {short_message(error)}; then no output can be "
        "checked: export the model with operators and types that onnxruntime has on CPUs"
    )


def short_message(error: Exception) -> str:
    """First line of an exception's text, without error codes and source positions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _NOISE.sub("", lines[0]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
