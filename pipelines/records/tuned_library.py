"""A tuned library as MLflow's generic Python model: needs TVM and NumPy, and nothing of fewtune.

A copy of this file goes with each recorded model, so it imports neither fewtune nor MLflow.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DESCRIPTION, LIBRARY = "library.json", "model.so"


class TunedLibrary:
    """A library that is loaded once and called by one thread at a time.

    Parameters
    ----------
    folder : Path
        Holds the library and ``library.json``: ``inputs`` and ``outputs`` in their order, each with
        name, shape and dtype; ``threads``; ``device``, by TVM's name.
    """

    def __init__(self, folder: Path) -> None:
        description = json.loads((folder / DESCRIPTION).read_text())
        self._inputs: list[dict[str, Any]] = description["inputs"]
        self._outputs: list[str] = [output["name"] for output in description["outputs"]]
        threads = int(description["threads"])
        # TVM reads it when it is loaded; unless it is set, TVM takes half of the cores.
        os.environ.setdefault("TVM_NUM_THREADS", str(threads))
        import tvm
        from tvm import relax

        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        self._device = tvm.device(description["device"])
        self._tensor = tvm.runtime.tensor
        library = tvm.runtime.load_module(str((folder / LIBRARY).resolve()))
        self._machine = relax.VirtualMachine(library, self._device)
        self._lock = threading.Lock()

    def predict(
        self, model_input: Mapping[str, Any] | np.ndarray, params: Any = None
    ) -> dict[str, np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        model_input : mapping from str to array, or array
            An array for each input, of its shape; with one input, the array alone.
        params : Any
            Not used; MLflow gives it.

        Returns
        -------
        outputs : dict of numpy.ndarray
            By name.
        """
        if isinstance(model_input, np.ndarray) and len(self._inputs) == 1:
            model_input = {self._inputs[0]["name"]: model_input}
        tensors = []
        for expected in self._inputs:
            name, shape = expected["name"], tuple(expected["shape"])
            if name not in model_input:
                raise ValueError(f"input {name!r} is missing: give an array of shape {shape}")
            # `ascontiguousarray` gives a number an axis.
            value = np.asarray(model_input[name], dtype=expected["dtype"], order="C")
            if value.shape != shape:
                raise ValueError(f"input {name!r} has shape {value.shape}: it takes {shape}")
            tensors.append(self._tensor(value, self._device))
        with self._lock:
            outputs = self._machine["main"](*tensors)
            self._device.sync()
        given = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return {name: output.numpy() for name, output in zip(self._outputs, given, strict=True)}


def _load_pyfunc(path: str) -> TunedLibrary:
    """Load the model; MLflow calls this."""
    return TunedLibrary(Path(path))
