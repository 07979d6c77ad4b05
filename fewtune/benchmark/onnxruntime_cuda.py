"""onnxruntime on a GPU, the peer of a library that runs there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from fewtune.errors import InputError
from fewtune.onnx_graph.observed_shapes import cannot_load, short_message

_PROVIDER = "CUDAExecutionProvider"
NOT_THERE = "onnxruntime ran on the processor: its CUDA provider is not installed (onnxruntime-gpu)"
THERE = "onnxruntime ran on its CUDA provider, in fp32 without TF32, its inputs on the GPU"


def has_provider() -> bool:
    """Whether the onnxruntime that is installed knows CUDA."""
    return _PROVIDER in onnxruntime.get_available_providers()


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
