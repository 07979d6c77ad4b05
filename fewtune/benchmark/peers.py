"""Other runtimes beside TVM: OpenVINO, and onnxruntime on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from fewtune.errors import InputError, last_line
from fewtune.onnx_graph.session import cannot_load, short_message

OPENVINO = "openvino"


def openvino_version() -> str | None:
    """The installed version of OpenVINO; None if it is not installed."""
    try:
        return version(OPENVINO)
    except PackageNotFoundError:
        return None


class OpenvinoSession:
    """OpenVINO on the CPU with given inputs and threads, for many runs.

    It is compiled for latency and computes in f32, as the others do. Dynamic quantisation is
    off: on models with int8 weights it computes in int8 by default, which moved the outputs of a
    MiniLM by 3e-2.

    Parameters
    ----------
    model : Path
        An ONNX file without dynamic dimensions.
    threads : int
    inputs : dict of ndarray
        By input name.

    Raises
    ------
    InputError
        If OpenVINO is missing, or cannot read, compile or run the model.
    """

    def __init__(self, model: Path, threads: int, inputs: dict[str, np.ndarray]) -> None:
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": str(threads),
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        }
        # Whatever the package raises, the model is measured without it.
        try:
            import openvino

            compiled = openvino.Core().compile_model(model, "CPU", options)
            self._request = compiled.create_infer_request()
            for port in compiled.inputs:
                name = next(name for name in port.get_names() if name in inputs)
                array = np.asarray(inputs[name], order="C")
                self._request.set_tensor(port, openvino.Tensor(array))
            self.run()
        except Exception as error:  # noqa: BLE001
            raise InputError(f"OpenVINO cannot run the model: {last_line(error)}") from None

    def run(self) -> Any:
        """Run the model once on its inputs; outputs stay in OpenVINO's memory."""
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[np.ndarray]:
        """The outputs of one run, in the order of the graph."""
        return [np.array(output) for output in self.run().values()]


_PROVIDER = "CUDAExecutionProvider"
NOT_THERE = "onnxruntime ran on the processor: its CUDA provider is not installed (onnxruntime-gpu)"
THERE = "onnxruntime ran on its CUDA provider, in fp32 without TF32, its inputs on the GPU"


class CudaSession:
    """onnxruntime on the first GPU, its inputs and outputs there.

    Parameters
    ----------
    model : Path
    feeds : dict of array
        Inputs by name; they are copied to the GPU once.

    Raises
    ------
    InputError
        If onnxruntime cannot run the model there.
    """

    def __init__(self, model: Path, feeds: dict[str, np.ndarray]) -> None:
        if _PROVIDER not in onnxruntime.get_available_providers():
            raise InputError(NOT_THERE)
        preload: Callable[[], None] = getattr(onnxruntime, "preload_dlls", lambda: None)
        preload()
        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        # A tuned library computes in fp32, too.
        provider = (_PROVIDER, {"device_id": "0", "use_tf32": "0"})
        try:
            self._session = onnxruntime.InferenceSession(
                str(model), options, providers=[provider, "CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001 (onnxruntime raises a class a status)
            raise InputError(cannot_load(error)) from None
        if _PROVIDER not in self._session.get_providers():
            raise InputError("onnxruntime's CUDA provider did not load: see its requirements")
        self._bound = self._session.io_binding()
        self._inputs = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
            for name, value in feeds.items()
        }
        for name, value in self._inputs.items():
            self._bound.bind_ortvalue_input(name, value)
        for output in self._session.get_outputs():
            self._bound.bind_output(output.name, "cuda", 0)

    def run(self) -> None:
        """Run once; returns when the GPU has finished.

        Raises
        ------
        InputError
            If onnxruntime fails.
        """
        try:
            self._session.run_with_iobinding(self._bound)
            self._bound.synchronize_outputs()
        except Exception as error:  # noqa: BLE001 (as above)
            raise InputError(f"onnxruntime cannot run the model: {short_message(error)}") from None
