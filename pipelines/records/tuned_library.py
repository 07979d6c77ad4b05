"""A tuned library as MLflow's generic Python model: a bundle, run by its own session.

A copy of this file goes with each recorded model, so it imports no other file of this project.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = "model.so"


class TunedLibrary:
    """A library that is loaded once, and may be called from any thread.

    Parameters
    ----------
    folder : Path
        A bundle. The seal of its library is checked before it is loaded.
    """

    def __init__(self, folder: Path) -> None:
        # Behind other packages: a fewtune that is installed stays what it is.
        sys.path.append(str(folder))
        try:
            from fewtune.deploy.session import InferenceSession
        except ImportError:
            raise RuntimeError(
                f"{folder / LIBRARY} runs on a board or a GPU: load it there, with TVM"
            ) from None
        self._session = InferenceSession(folder / LIBRARY)
        self._outputs = [output.name for output in self._session.get_outputs()]

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
        if isinstance(model_input, np.ndarray):
            model_input = {self._session.get_inputs()[0].name: model_input}
        return dict(zip(self._outputs, self._session.run(None, dict(model_input)), strict=True))


def _load_pyfunc(path: str) -> TunedLibrary:
    """Load the model; MLflow calls this."""
    return TunedLibrary(Path(path))
