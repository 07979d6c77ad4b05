"""A compiled model on a board: uploaded once, run and timed there."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.machine.rpc_board import remote_device
from fewtune.runtime.linking import export_library
from fewtune.runtime.tvm import relax, tvm

_MAIN = "main"


class BoardModel:
    """A compiled model on a board; as `fewtune.runtime.executable.CompiledModel`.

    Parameters
    ----------
    session : RPCSession
        The board's session.
    executable : relax.VMExecutable or Path
        As built, or the path of an exported library.
    target : Target
    link : callable or None
        Links libraries for the board.
    """

    def __init__(
        self,
        session: Any,
        executable: relax.VMExecutable | Path,
        target: tvm.target.Target,
        link: Callable[..., None] | None,
    ) -> None:
        self._device = remote_device(session, target)
        with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
            # A board's loader does not load a second library of the same name.
            path = Path(scratch) / f"model-{uuid.uuid4().hex}.so"
            if isinstance(executable, Path):
                shutil.copyfile(executable, path)
            else:
                export_library(executable, path, link)
            session.upload(str(path))
        self._machine = relax.VirtualMachine(session.load_module(path.name), self._device)

    def set_inputs(self, inputs: list[np.ndarray]) -> None:
        """Copy the inputs to the board; `run` uses them until the next call."""
        tensors = [tvm.runtime.tensor(value, self._device) for value in inputs]
        self._machine.set_input(_MAIN, *tensors)

    def run(self) -> None:
        """Run once."""
        self._machine.invoke_stateful(_MAIN)

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs`` and copy the outputs back."""
        self.set_inputs(inputs)
        self.run()
        found = self._machine.get_outputs(_MAIN)
        several = found if isinstance(found, list | tuple) else [found]
        return [output.numpy() for output in several]

    def times_s(self, calls: int) -> list[float]:
        """Seconds of each of some runs on the inputs that were set, by the board's clock."""
        timed = self._machine.time_evaluator(
            "invoke_stateful", self._device, number=1, repeat=calls
        )
        return [float(value) for value in timed(_MAIN).results]
