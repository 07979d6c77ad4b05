"""OpenVINO as a peer in the same measurements: optional, used if it is installed.

It is no dependency: ``pip install fewtune[peers]`` brings it. Nothing here sends telemetry:
OpenVINO's own is sent by its converter and its command-line tools, which are not used.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.errors import InputError

OPENVINO = "openvino"
# Beginnings of lines in its reports that only name its own sources.
_WHERE = ("Exception from", "Check '", "FrontEnd API failed")
_SUMMARIES = ("Conversion is failed for", "No conversion rule found for")


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
        # Whatever the package raises, the model is measured without it.
        try:
            import openvino

            compiled = openvino.Core().compile_model(model, "CPU", _options(threads))
            self._request = compiled.create_infer_request()
            for port in compiled.inputs:
                name = next(name for name in port.get_names() if name in inputs)
                array = np.asarray(inputs[name], order="C")
                self._request.set_tensor(port, openvino.Tensor(array))
            self.run()
        except Exception as error:  # noqa: BLE001
            raise InputError(f"OpenVINO cannot run the model: {_reason(error)}") from None

    def run(self) -> Any:
        """Run the model once on its inputs; outputs stay in OpenVINO's memory."""
        return self._request.infer(share_outputs=True)

    def outputs(self) -> list[np.ndarray]:
        """The outputs of one run, in the order of the graph."""
        return [np.array(output) for output in self.run().values()]


def _options(threads: int) -> dict[str, str]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": str(threads),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    }


def _reason(error: Exception) -> str:
    """The line of OpenVINO's report that names the cause, not the place in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    summed_up = [line.removeprefix("-- ") for line in lines if any(map(line.count, _SUMMARIES))]
    messages = [line for line in lines if not line.startswith(_WHERE)]
    return (summed_up or messages or lines or [type(error).__name__])[0].rstrip(".:")
