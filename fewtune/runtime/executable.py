"""Builds a lowered Relax module, exports it, loads it, and runs it."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.artifacts import MAIN
from fewtune.deploy.runtime import load_as_on_disk
from fewtune.errors import MachineError
from fewtune.runtime import vector_math
from fewtune.runtime.special_values import PIPELINE
from fewtune.runtime.target import has_own_device, tvm_device
from fewtune.runtime.tvm import relax, tvm
from fewtune.tvm_compat.noise import without_noise
from fewtune.tvm_compat.packing import packed_as_bytes
from fewtune.util.files import full_disk

_COMPILER = "Compilation error:"
_THREADS = Path(__file__).with_name("threads.c")


def with_own_threads(threads: int, link: Callable[..., None] | None = None) -> Callable[..., None]:
    """A linker as ``link`` whose libraries run on threads of their own (``threads.c``)."""
    from tvm.support import cc

    link = link or cc.create_shared

    @wraps(link)
    def linked(output: str, objects: list[str], options: Sequence[str] = ()) -> None:
        own = ["-O2", "-pthread", "-s", f"-DFEWTUNE_THREADS={threads}"]
        # A C++ compiler takes a file of C for one of C++, unless it is told.
        link(output, [*objects, "-x", "c", str(_THREADS)], options=[*options, *own])

    return linked


def export_library(
    built: Any,
    path: Path,
    link: Callable[..., None] | None = None,
    objects: Sequence[str] = (),
) -> None:
    """Write what TVM has built as a library.

    Parameters
    ----------
    built
        A kernel's or a model's executable.
    path : Path
        Of the library.
    link : callable, optional
        Links the object files; TVM's own call of the C compiler unless given.
    objects : sequence of str
        Further object files that belong to it.

    Raises
    ------
    OSError
        If the disk of the library, or that of temporary files, is full: LLVM and linkers say so
        in many ways, or write half of a file.
    MachineError
        If the C compiler cannot link.
    """
    try:
        with without_noise():
            built.export_library(
                str(path), fcompile=link, addons=list(objects), fpack_imports=packed_as_bytes
            )
    except Exception as fault:
        no_room = full_disk(path.parent, Path(tempfile.gettempdir()))
        if no_room is not None:
            raise no_room from fault
        text = str(fault)
        if _COMPILER in text:
            lines = text.partition(_COMPILER)[2].strip().splitlines()
            raise MachineError(
                f"the C compiler could not link {path.name}: {lines[0] if lines else 'no reason'}"
            ) from fault
        raise


def load_library(path: Path) -> Any:
    """Load a library as it is on disk now."""
    with without_noise():
        return load_as_on_disk(path, tvm.runtime.load_module)


# The attribute of a kernel that has a schedule; TVM leaves such kernels as they are.
IS_SCHEDULED = "tirx.is_scheduled"
# Follows the name of a kernel whose tensors lie within others, before a number.
IN_PLACE = "_in_place"
_SUFFIX = re.compile(rf"(?:{IN_PLACE}\d+)?$")
# Takes a kernel, the number of its call, and the call's arguments.
Observer = Callable[[str, int, Sequence[Any]], None]
# The virtual machine's own functions: allocating, reshaping, checking shapes.
_BUILTIN = "vm.builtin."


def kernel_name(symbol: str) -> str:
    """The name that the import gave to a kernel of a library."""
    return _SUFFIX.sub("", symbol)


def build_executable(
    lowered: tvm.IRModule,
    target: tvm.target.Target,
    rewrite: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
    has_asserts: bool = True,
    pipeline: str = PIPELINE,
) -> relax.VMExecutable:
    """Compile a module whose operators are already kernels (after FuseTIR).

    Parameters
    ----------
    lowered : tvm.IRModule
        Output of `fewtune.model.import_model.lower`, its kernels scheduled or not.
    target : tvm.target.Target
    rewrite : callable, optional
        Is given the module once its tensors are allocated, before their memory is planned.
    has_asserts : bool
        Whether each kernel checks shapes and types of its arguments whenever it is called.
    pipeline : str
        Name of TVM's pipeline for kernels.

    Returns
    -------
    executable : relax.VMExecutable
    """
    from tvm.relax.pipeline import finalize_passes

    # TVM 0.27 has these four in a function that its CPU backend forgets to export.
    passes = tvm.transform.Sequential(
        [
            relax.transform.RewriteDataflowReshape(),
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),
            *([] if rewrite is None else [module_pass(rewrite)]),
            *finalize_passes(target),
        ]
    )
    if has_own_device(target):
        # On a GPU each kernel needs a schedule, if only by rule.
        from tvm.s_tir import dlight

        with target:
            lowered = dlight.ApplyDefaultSchedule(*gpu_rules())(lowered)
    config = {"tirx.disable_assert": not has_asserts}
    context = tvm.transform.PassContext(opt_level=3, config=config)
    with target, context, vector_math.as_marked(lowered):
        return relax.build(lowered, target=target, relax_pipeline=passes, tir_pipeline=pipeline)


def gpu_rules() -> list[Any]:
    """Dlight's rules for kernels on a GPU, in the order in which they are tried."""
    from tvm.s_tir.dlight import gpu

    return [gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback()]


def module_pass(rewrite: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.transform.Pass:
    """A function of a module as a pass that others may stand beside."""
    return tvm.transform.module_pass(lambda module, _context: rewrite(module), opt_level=0)


class CompiledModel:
    """A compiled model with its inputs bound by position.

    Parameters
    ----------
    executable : relax.VMExecutable or Path
        As built, or the path of an exported library.
    target : tvm.target.Target
    """

    def __init__(self, executable: relax.VMExecutable | Path, target: tvm.target.Target) -> None:
        if isinstance(executable, Path):
            executable = load_library(executable)
        self.device = tvm_device(target)
        self._executable = executable
        self._machine = relax.VirtualMachine(executable, self.device)
        self._watched: relax.VirtualMachine | None = None
        self._inputs: list[tvm.runtime.Tensor] = []
        self._function = MAIN

    def at(self, function: str) -> CompiledModel:
        """The same model at another of its shapes: weights and code are shared."""
        other = copy(self)
        other._function, other._inputs = function, []
        return other

    def set_inputs(self, inputs: list[np.ndarray]) -> None:
        """Copy the inputs to the device; `run` uses them until the next call."""
        self._inputs = [tvm.runtime.tensor(value, self.device) for value in inputs]

    def run(self) -> list[tvm.runtime.Tensor]:
        """Run once; returns when the device has finished."""
        return self._finished(self._machine[self._function](*self._inputs))

    def _finished(self, outputs: Any) -> list[tvm.runtime.Tensor]:
        self.device.sync()
        return list(outputs) if not hasattr(outputs, "numpy") else [outputs]

    def outputs(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run once on ``inputs`` and copy the outputs back."""
        self.set_inputs(inputs)
        return [output.numpy() for output in self.run()]

    def observed(
        self, inputs: list[np.ndarray], observe: Observer, before: Observer | None = None
    ) -> list[np.ndarray]:
        """Run once on ``inputs``, and show every kernel's arguments after its call.

        Parameters
        ----------
        inputs : list of arrays
        observe : callable
            Takes a kernel's name as the import has it, the number of its call from 0, and its
            arguments, results last. It may change the tensors: later kernels read them so.
        before : callable, optional
            The same, before the call.

        Returns
        -------
        outputs : list of arrays
        """
        calls: Counter[str] = Counter()

        def watch(symbol: str, is_before: bool, arguments: Sequence[Any]) -> None:
            kernel = kernel_name(symbol)
            if observer := before if is_before else observe:
                observer(kernel, calls[kernel], arguments)
            calls[kernel] += not is_before

        given = [tvm.runtime.tensor(value, self.device) for value in inputs]
        return [output.numpy() for output in self._run_watched(watch, given)]

    def kernel_times_s(self) -> dict[str, float]:
        """Run once on the inputs, and time every kernel where it is called.

        Returns
        -------
        times_s : dict of float
            By the name that a kernel has in the library, seconds of all its calls. What the virtual
            machine does between them is in none.
        """
        times_s: dict[str, float] = defaultdict(float)
        began_s = 0.0

        def watch(symbol: str, is_before: bool, _arguments: Sequence[Any]) -> None:
            nonlocal began_s
            if is_before:
                began_s = time.perf_counter()
            else:
                times_s[symbol] += time.perf_counter() - began_s

        self._run_watched(watch, self._inputs)
        return times_s

    def _run_watched(
        self, watch: Callable[[str, bool, Sequence[Any]], None], inputs: Sequence[Any]
    ) -> list[tvm.runtime.Tensor]:
        """Run once; a function is told of each kernel's call before and after it."""
        if self._watched is None:
            # A virtual machine of its own, since a watch cannot be removed; weights are shared.
            self._watched = relax.VirtualMachine(self._executable, self.device)

        def instrument(
            _function: Any, symbol: str, is_before: bool, _result: Any, *arguments: Any
        ) -> None:
            if not symbol.startswith(_BUILTIN):
                self.device.sync()
                watch(symbol, is_before, arguments)

        self._watched.set_instrument(instrument)
        return self._finished(self._watched[self._function](*inputs))
