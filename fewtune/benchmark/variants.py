"""The variants of one model that are measured in the same rounds, loaded and ready to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from fewtune.artifacts import Fingerprint, ImportReport
from fewtune.benchmark import onnxruntime_cuda
from fewtune.benchmark.builds import untuned_model
from fewtune.benchmark.interleaved_kernels import KernelSamples, kernels_in_turns
from fewtune.benchmark.openvino_peer import OPENVINO, OpenvinoSession, openvino_version
from fewtune.benchmark.options import BenchmarkOptions
from fewtune.errors import InputError
from fewtune.machine.affinity import apart_from_the_pool, cores_off_the_pool, on_cores
from fewtune.machine.core_to_core import HandOver, hand_over
from fewtune.measure import interleave
from fewtune.model.import_model import REFERENCE
from fewtune.runtime.executable import CompiledModel
from fewtune.runtime.target import has_own_device, target_from_json
from fewtune.runtime.tvm import set_threads, tvm
from fewtune.task.analysis import FLOAT32_BYTES
from fewtune.verify.comparison import Difference
from fewtune.verify.reference import Reference
from fewtune.verify.session import OnnxruntimeSession

_HAND_OVER = "hand over"


class Variants:
    """The variants of one model, ready to run on the same inputs and threads.

    Parameters
    ----------
    import_directory : Path
    libraries : dict of Path
        Exported libraries by variant name.
    fingerprint : Fingerprint
    options : BenchmarkOptions
    with_untuned : bool
        Whether the model as TVM compiles it without schedules is among them.
    turned : bool
        Begin with the last library, not the first. The library that is loaded first stays slower:
        of ResNet 50's two libraries, each with three copies, one took 2 to 5 % longer as the first
        than as the second (a Xeon). So copies are loaded in turns, in alternating order.

    untuned : CompiledModel, optional
    between_cores : HandOver, optional
        Measures data that goes from core to core. Both are built here unless given
        (`fewtune.benchmark.builds`).

    Attributes
    ----------
    options : BenchmarkOptions
        With the number of copies that are loaded.
    hand_over_s : list of float
        Seconds of data from core to core, one value for each round; empty with a single core.
    peers : dict of str
        Versions of the optional peers that are also measured: OpenVINO if it is installed and can
        run the model.
    remarks : list of str
        Which peer cannot run the model, and why.
    """

    def __init__(
        self,
        import_directory: Path,
        libraries: dict[str, Path],
        fingerprint: Fingerprint,
        options: BenchmarkOptions,
        *,
        with_untuned: bool = True,
        turned: bool = False,
        untuned: CompiledModel | None = None,
        between_cores: HandOver | None = None,
    ) -> None:
        set_threads(fingerprint.threads)
        target = target_from_json(fingerprint.target)
        imported = ImportReport.read(import_directory)
        inputs = imported.inputs
        # OpenVINO's runs on a GPU are on those of another maker.
        installed = None if has_own_device(target) else openvino_version()
        peers = 1 if installed is None else 2
        self.options = _with_room(options, imported.parameters, len(libraries) + peers)
        self._reference = Reference.read(import_directory)
        feeds = self._reference.feeds
        self._order = [spec.name for spec in inputs]
        ordered = [feeds[spec.name] for spec in inputs]
        model, copies = import_directory / REFERENCE, range(self.options.copies)
        self._compiled: dict[str, list[CompiledModel]] = {}
        if with_untuned:
            untuned = untuned or untuned_model(import_directory, target)
            self._compiled["untuned"] = [untuned]
            untuned.set_inputs(ordered)
        self.remarks: list[str] = []
        peer_run = self._onnxruntime(model, fingerprint.threads, feeds, target)
        runs: list[interleave.Run] = []
        peer = None if installed is None else self._openvino(model, fingerprint.threads, feeds)
        peer_copies: list[OpenvinoSession] = [] if peer is None else [peer]
        self._compiled.update((name, []) for name in libraries)
        for copy in copies:
            names = [*libraries, "onnxruntime"]
            for name in names if (copy + turned) % 2 == 0 else names[::-1]:
                if name in libraries:
                    loaded = CompiledModel(libraries[name], target)
                    loaded.set_inputs(ordered)
                    self._compiled[name].append(loaded)
                else:
                    runs.append(peer_run())
            if peer is not None and copy > 0:
                peer_copies.append(OpenvinoSession(model, fingerprint.threads, feeds))
        self.runs: dict[str, list[interleave.Run]] = {
            name: [copy.run for copy in compiled] for name, compiled in self._compiled.items()
        }
        self.runs["onnxruntime"] = runs
        self.peers: dict[str, str] = {}
        if installed is not None and peer_copies:
            self.peers[OPENVINO] = installed
            self.runs[OPENVINO] = [copy.run for copy in peer_copies]
        self._hand_over = between_cores or hand_over(target, fingerprint.threads)
        self.hand_over_s: list[float] = []

    def _onnxruntime(
        self, model: Path, threads: int, feeds: dict[str, np.ndarray], target: tvm.target.Target
    ) -> Callable[[], interleave.Run]:
        """Makes a session of onnxruntime, on the libraries' GPU if it can."""
        if has_own_device(target):
            try:
                first = onnxruntime_cuda.CudaSession(model, feeds)
            except InputError as error:
                known = onnxruntime_cuda.has_provider()
                self.remarks.append(str(error) if known else onnxruntime_cuda.NOT_THERE)
            else:
                self.remarks.append(onnxruntime_cuda.THERE)
                # One session only: another would hold a second copy of the weights on the GPU.
                return lambda: first.run
        return lambda: partial(OnnxruntimeSession(model, threads, rounds_inputs=True).run, feeds)

    def _openvino(
        self, model: Path, threads: int, feeds: dict[str, np.ndarray]
    ) -> OpenvinoSession | None:
        """OpenVINO with the model; None and a remark if it cannot run the model."""
        try:
            return OpenvinoSession(model, threads, feeds)
        except InputError as error:
            self.remarks.append(str(error))
            return None

    def measured(self, rounds: int, known_within: float | None = None) -> dict[str, list[float]]:
        """Seconds of one call of every variant, in turns; untuned is there for scale.

        With ``known_within``, rounds end when every median's relative standard error is at most
        that.

        The hand-over between cores is measured in every round too (`hand_over_s`).

        While a library runs, this thread keeps off the cores to which TVM's other threads are
        bound. Without this, every other process of a comparison had both on one core for a while,
        and MobileNet V2 took 6.4 instead of 3.4 ms (an EPYC). onnxruntime does not bind its
        threads, and the system keeps them apart.
        """
        untuned = frozenset({"untuned"})
        tuned = frozenset(self._compiled) - untuned
        # The thread pool exists once a kernel has run.
        self._compiled[min(tuned)][0].run()
        roaming, apart = os.sched_getaffinity(0), cores_off_the_pool()
        placed: dict[str, Callable[[], object] | Sequence[Callable[[], object]]] = {
            name: [
                partial(on_cores, apart if name in self._compiled else roaming, run) for run in runs
            ]
            for name, runs in self.runs.items()
        }
        if self._hand_over is not None:
            placed[_HAND_OVER] = [partial(on_cores, apart, self._hand_over.run)]
        try:
            samples = interleave.interleave(
                placed,
                rounds,
                for_scale=untuned,
                together=tuned,
                known_within=known_within,
                for_state=frozenset({_HAND_OVER}),
            )
        finally:
            os.sched_setaffinity(0, roaming)
        self.hand_over_s += [time_s / 2 for time_s in samples.pop(_HAND_OVER, [])]
        return samples

    def kernels_measured(self) -> dict[str, KernelSamples]:
        """The time of each kernel of every library in the model, libraries in turns."""
        tuned = {name: each for name, each in self._compiled.items() if name != "untuned"}
        with apart_from_the_pool():
            return kernels_in_turns(tuned)

    def difference(self, name: str) -> Difference:
        """How far a variant's outputs are from onnxruntime's on the draws that the import kept.

        The difference is only reported: its allowance was checked when the library was compiled.
        """
        compiled = self._compiled[name][0]
        found = self._reference.check_library(compiled, self._order)
        compiled.set_inputs([self._reference.feeds[each] for each in self._order])
        return found


def _with_room(options: BenchmarkOptions, parameters: int, variants: int) -> BenchmarkOptions:
    """Options with at most as many copies as have their weights in half of the free memory."""
    room = psutil.virtual_memory().available // 2
    fitting = max(1, room // max(1, variants * FLOAT32_BYTES * parameters))
    return options.model_copy(update={"copies": min(options.copies, fitting)})
