"""The variants of one model that are measured in the same rounds, loaded and ready to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from fewtune.artifacts import MAIN, Fingerprint, ImportReport, TaskInfo
from fewtune.benchmark import interleave, peers
from fewtune.benchmark.interleave import Quiet
from fewtune.benchmark.kernels import KernelSamples, kernel_samples
from fewtune.benchmark.peers import OPENVINO, OpenvinoSession, openvino_version
from fewtune.deploy.session import InferenceSession
from fewtune.errors import InputError
from fewtune.machine.host import apart_from_the_pool, cores_off_the_pool
from fewtune.machine.peak import PeakMeter
from fewtune.measure.device import device_of
from fewtune.model.import_model import REFERENCE, read_lowered, shape_folder
from fewtune.model.one_module import largest_alone
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.options import BenchmarkOptions
from fewtune.runtime.executable import CompiledModel, build_executable
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import relax, set_threads, tvm
from fewtune.task.analysis import FLOAT32_BYTES
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference

# Weights that building a model holds at most, in the process that compiles and in this one.
_COPIES = 8


class Builds(NamedTuple):
    """The untuned model, and the meter of the machine's peak (None for a GPU); none has run.

    They do not depend on the tuned library. Building them needs one core, and so does compiling
    that: a caller that does both can build them meanwhile.
    """

    untuned: CompiledModel
    meter: PeakMeter | None

    @staticmethod
    def of(import_directory: Path, tasks: list[TaskInfo], fingerprint: Fingerprint) -> Builds:
        """Build both, not for a board; the tasks tell whether products of bytes count."""
        set_threads(fingerprint.threads)
        target = target_from_json(fingerprint.target)
        multiply_bytes = any(task.byte_flops for task in tasks)
        untuned = CompiledModel(untuned_executable(import_directory, target), target)
        if has_own_device(target):
            return Builds(untuned, None)
        return Builds(untuned, PeakMeter(target, fingerprint.threads, with_bytes=multiply_bytes))


def untuned_executable(import_directory: Path, target: tvm.target.Target) -> relax.VMExecutable:
    """The model, at the largest of its shapes, as TVM compiles it without schedules."""
    return build_executable(largest_alone(read_lowered(import_directory)), target)


def has_room(import_directory: Path) -> bool:
    """Whether memory is free for `Builds` beside a process that compiles the model."""
    parameters = ImportReport.read(import_directory).parameters
    return _COPIES * FLOAT32_BYTES * parameters <= psutil.virtual_memory().available // 2


_UNTUNED, _ONNXRUNTIME = "untuned", "onnxruntime"


class Measurements(NamedTuple):
    """The measurements of one process.

    Attributes
    ----------
    samples_s : dict of list of float
        By variant, seconds of one call, one sample for each round.
    difference : Difference
        The largest difference of the libraries' outputs from onnxruntime's.
    copies : int
        Copies of each library that fit into memory.
    kernels_s : KernelSamples
        Times of one library's kernels where the model calls them; empty on a board.
    peers : dict of str
        Versions of the optional peers that were also measured.
    remarks : list of str
        Which peer cannot run the model, and why.
    quiet : Quiet or None
        Which rounds were disturbed; None on a board, whose load is not known.
    """

    samples_s: interleave.Samples
    difference: Difference
    copies: int
    kernels_s: KernelSamples
    peers: dict[str, str]
    remarks: list[str]
    quiet: Quiet | None = None


class Variants:
    """The variants of one model, ready to run on the same inputs and threads.

    Parameters
    ----------
    import_directory : Path
    libraries : dict of Path
        Exported libraries by variant name.
    fingerprint : Fingerprint
    options : BenchmarkOptions
    untuned : CompiledModel or bool
        The model as TVM compiles it without schedules; built here if True, left out if False.
    turned : bool
        Begin with the last library, not the first. The library that is loaded first stays slower:
        of ResNet 50's two libraries, each with three copies, one took 2 to 5 % longer as the first
        than as the second (a Xeon). So copies are loaded in turns, in alternating order.
    function : str
        The libraries' function of the shape that is measured.

    Attributes
    ----------
    options : BenchmarkOptions
        With the number of copies that are loaded.
    runs : dict of list of callable
        By variant, what runs each copy once.
    peers : dict of str
        Versions of the optional peers: OpenVINO if it is installed and can run the model.
    remarks : list of str
        Which peer cannot run the model, and why.
    """

    def __init__(  # noqa: PLR0913 (what is measured beside what)
        self,
        import_directory: Path,
        libraries: dict[str, Path],
        fingerprint: Fingerprint,
        options: BenchmarkOptions,
        *,
        untuned: CompiledModel | bool = True,
        turned: bool = False,
        function: str = MAIN,
    ) -> None:
        set_threads(fingerprint.threads)
        self._device, self._threads = device_of(fingerprint), fingerprint.threads
        self._is_here = self._device.can.runs_here
        self._function, folder = function, shape_folder(import_directory, function)
        self._model = folder / REFERENCE
        imported = ImportReport.read(import_directory)
        self._reference = Reference.read(folder)
        self._order = [spec.name for spec in imported.inputs]
        self.peers: dict[str, str] = {}
        self.remarks: list[str] = []
        if not self._is_here:
            name = fingerprint.device
            self.remarks.append(f"measured on {name} by its own clock, without onnxruntime")
        # OpenVINO's runs on a GPU are on those of another maker.
        installed = openvino_version() if self._device.can.shared_cores else None
        # Of each library there is one copy whose kernels are timed, and one that a session has.
        variants = 2 * len(libraries) + (1 if installed is None else 2)
        # A board has memory for one copy of each library only.
        room = options if self._is_here else options.model_copy(update={"copies": 1})
        self.options = _with_room(room, imported.parameters, variants)
        if untuned is True:
            untuned = self._device.load(untuned_executable(import_directory, self._device.target))
        self._compiled: dict[str, list[CompiledModel]] = {name: [] for name in libraries}
        self.runs: dict[str, list[interleave.Run]] = {}
        if untuned:
            self._set_inputs(untuned)
            # The pool is there once a kernel has run on it.
            untuned.run()
            self.runs[_UNTUNED] = [partial(_run_off_the_pool, untuned, cores_off_the_pool())]
        self.runs |= {name: [] for name in [*libraries, *[_ONNXRUNTIME] * self._is_here]}
        openvino = None if installed is None else self._openvino()
        if installed is not None and openvino is not None:
            self.peers[OPENVINO] = installed
            self.runs[OPENVINO] = [openvino.run]
        self._load(libraries, turned)

    def _load(self, libraries: dict[str, Path], turned: bool) -> None:
        """Load the copies, in turns."""
        onnxruntime_run = self._onnxruntime()
        names = [name for name in self.runs if name not in (_UNTUNED, OPENVINO)]
        for copy in range(self.options.copies):
            for name in names if (copy + turned) % 2 == 0 else names[::-1]:
                if name in libraries:
                    loaded = self._device.load(libraries[name]).at(self._function)
                    self._set_inputs(loaded)
                    self._compiled[name].append(loaded)
                    self.runs[name].append(self._called(libraries[name], loaded))
                else:
                    self.runs[name].append(onnxruntime_run())
            if OPENVINO in self.runs and copy > 0:
                session = OpenvinoSession(self._model, self._threads, self._reference.feeds)
                self.runs[OPENVINO].append(session.run)

    def _called(self, library: Path, loaded: CompiledModel) -> interleave.Run:
        """What a user's program calls: a session, as onnxruntime's, and all that it does around.

        Beside the virtual machine's call it took 9 us more of a processor (a Xeon).
        """
        if not self._device.can.shared_cores:
            return loaded.run
        session = InferenceSession(library, threads=self._threads)
        feeds = {name: self._reference.feeds[name] for name in self._order}
        return partial(session.run, None, feeds)

    def _set_inputs(self, compiled: CompiledModel) -> None:
        compiled.set_inputs([self._reference.feeds[name] for name in self._order])

    def _onnxruntime(self) -> Callable[[], interleave.Run]:
        """Makes a session of onnxruntime, on the libraries' GPU if it can."""
        feeds = self._reference.feeds
        if self._is_here and not self._device.can.shared_cores:
            try:
                first = peers.CudaSession(self._model, feeds)
            except InputError as error:
                self.remarks.append(str(error))
            else:
                self.remarks.append(peers.THERE)
                # One session only: another would hold a second copy of the weights on the GPU.
                return lambda: first.run

        def session() -> interleave.Run:
            made = OnnxruntimeSession(self._model, self._threads, measured=True)
            return partial(made.run, feeds)

        return session

    def _openvino(self) -> OpenvinoSession | None:
        """OpenVINO with the model; None and a remark if it cannot run the model."""
        try:
            return OpenvinoSession(self._model, self._threads, self._reference.feeds)
        except InputError as error:
            self.remarks.append(str(error))
            return None

    def measure(self, rounds: int, known_within: float | None = None) -> Measurements:
        """Compare outputs, then measure all variants, then the kernels if there is one library."""
        found = Difference()
        for name in self._compiled:
            found = found.worse(self.difference(name))
        quiet = Quiet(self._threads, self.options.wait_s) if self._is_here else None
        samples_s = self.measured(rounds, known_within, quiet)
        only = [*self._compiled.values()] if self._is_here else []
        kernels_s = kernel_samples(only[0]) if len(only) == 1 else {}
        return Measurements(
            samples_s, found, self.options.copies, kernels_s, self.peers, self.remarks, quiet
        )

    def measured(
        self, rounds: int, known_within: float | None = None, quiet: Quiet | None = None
    ) -> interleave.Samples:
        """Seconds of one call of every variant, in turns; untuned is there for scale.

        With ``known_within``, rounds end when every median's relative standard error is at most
        that.
        """
        return interleave.interleave(
            self.runs,
            rounds,
            self._device.clock_s,
            for_scale=frozenset({_UNTUNED}),
            together=frozenset(self._compiled),
            known_within=known_within,
            quiet=quiet,
        )

    def difference(self, name: str) -> Difference:
        """How far a library's outputs are from onnxruntime's on the draws that the import kept.

        The difference is only reported: its allowance was checked when the library was compiled.
        """
        compiled = self._compiled[name][0]
        found = self._reference.check_library(compiled, self._order)
        self._set_inputs(compiled)
        return found


def _run_off_the_pool(model: CompiledModel, apart: set[int]) -> None:
    """Run a model on TVM's pool, this thread off the cores to which the pool's are bound.

    Libraries and onnxruntime do not bind their threads, and the system keeps them apart.
    """
    with apart_from_the_pool(apart):
        model.run()


def _with_room(options: BenchmarkOptions, parameters: int, variants: int) -> BenchmarkOptions:
    """Options with at most as many copies as have their weights in half of the free memory."""
    room = psutil.virtual_memory().available // 2
    fitting = max(1, room // max(1, variants * FLOAT32_BYTES * parameters))
    return options.model_copy(update={"copies": min(options.copies, fitting)})
