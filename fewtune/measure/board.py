"""Boards behind TVM's RPC tracker: candidates are built here, on all cores, and measured there.

A board runs only TVM's RPC server. Any client that reaches it, or its tracker, can run any code on
it (TVM's documentation): keep both on a private network.

One kind of worker compiles candidates into libraries in a folder, so that these outlive the worker.
Another kind holds the session of one board, and times them there. A board or its server may hang or
die like a candidate: the parent kills the worker that waits for it, and starts another. A task
stays on the board that measured it first, so that its races compare times of one board. Boards of
one key measure in parallel.
"""

from __future__ import annotations

import gc
import json
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from fewtune.artifacts import MAIN, Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.machine.fingerprint import FingerprintOptions, versions
from fewtune.measure.device import Capabilities, Device
from fewtune.measure.measurer import Measurer
from fewtune.runtime.executable import CompiledModel, export_library
from fewtune.runtime.target import (
    architecture,
    is_foreign,
    resolve_target,
    target_from_json,
    target_json,
)
from fewtune.runtime.tvm import compiled, module_of, relax, tvm, usable_cores, without_checks
from fewtune.schedule_check.check import Checker
from fewtune.task.weight_layout import PREPROC, free_places
from fewtune.timing.timer import BuiltKernel, Specs, Timer
from fewtune.trial.outcome import Built, RequestFailedError, WorkerLostError
from fewtune.workers.pool import WorkerHandle, WorkerOptions, WorkerPool
from fewtune.workers.worker import Worker, argument_shapes, as_in_model

# Seconds in which a tracker, or a board, has to answer.
ANSWER_S, _POLL_S = 4.0, 0.1
# Seconds in which a board that was just released has to be available again during a run.
BACK_S = 20.0
_FORM = re.compile(r"rpc://(?P<host>[^/:]+|\[[^\]]+\]):(?P<port>\d+)/(?P<key>[^/\s]+)")

# Boards are slower than the machine that builds for them, and so may be the network.
_OPTIONS = WorkerOptions(build_timeout_s=20.0, run_timeout_s=60.0)
_MOST_BOARDS = 16


class BoardAddress(NamedTuple):
    """A tracker, and the key under which it knows the boards of one kind."""

    host: str
    port: int
    key: str

    @staticmethod
    def of(text: str) -> BoardAddress:
        """Read ``rpc://HOST:PORT/KEY``.

        Raises
        ------
        InputError
            If it has another form.
        """
        found = _FORM.fullmatch(text)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise InputError(f"device {text!r} is none: give rpc://HOST:9190/KEY of a TVM tracker")
        return BoardAddress(found["host"].strip("[]"), int(found["port"]), found["key"])

    def __str__(self) -> str:
        return f"rpc://{self.host}:{self.port}/{self.key}"


class Known(NamedTuple):
    """A tracker's answer for a key: its servers' hosts, the number of free ones, all keys."""

    hosts: list[str]
    free: int
    keys: list[str]


def ask_tracker(address: BoardAddress, wait_s: float = ANSWER_S) -> Known:
    """Ask a tracker for the boards of a key, one of which has to be free; never hangs.

    TVM's own request waits for ever if no server has the key, or all its servers are taken. A
    server that was just released is unknown to its tracker for a moment.

    Parameters
    ----------
    address : BoardAddress
    wait_s : float
        Seconds in which a server has to be free.

    Raises
    ------
    MachineError
        If there is no tracker, or none of its servers of the key is free.
    """
    # A virtual machine of TVM is part of a reference cycle: until collected, it holds its board.
    gc.collect()
    deadline_s = time.monotonic() + wait_s
    while not (known := _known(address)).free:
        if time.monotonic() <= deadline_s:
            time.sleep(_POLL_S)
        elif known.hosts:
            raise MachineError(
                f"all {len(known.hosts)} servers of {address} are taken: wait until one is free, "
                "or end who holds it"
            )
        else:
            raise MachineError(
                f"the tracker at {address.host}:{address.port} has no server of key "
                f"{address.key!r}; its keys: {', '.join(known.keys) or 'none'} (a server that is "
                "taken may not show)"
            )
    return known


def _known(address: BoardAddress) -> Known:
    """A tracker's summary."""
    try:
        # TVM's client tries for a minute where nobody listens, and waits for any answer for ever.
        socket.create_connection((address.host, address.port), ANSWER_S).close()
        socket.setdefaulttimeout(ANSWER_S)
        summary = tvm.rpc.connect_tracker(address.host, address.port).summary()
    except (OSError, ValueError, RuntimeError) as error:
        raise MachineError(
            f"no TVM tracker answers at {address.host}:{address.port} ({error}): start one with "
            "`python -m tvm.exec.rpc_tracker`, or mend the address"
        ) from None
    finally:
        socket.setdefaulttimeout(None)
    hosts: dict[str, list[str]] = {}
    for server in summary["server_info"]:
        key = server["key"].removeprefix("server:")
        hosts.setdefault(key, []).append(str(server["addr"][0]))
    free = int(summary["queue_info"].get(address.key, {}).get("free", 0))
    return Known(hosts.get(address.key, []), free, sorted(hosts))


def reserve(address: BoardAddress, threads: int = 1) -> Any:
    """A session of a free board of a key; the board is free again when the session ends.

    Its kernels run so many threads, if its runtime has a pool of threads.

    Raises
    ------
    MachineError
        If there is none, or it does not answer.
    """
    ask_tracker(address, BACK_S)
    try:
        tracker = tvm.rpc.connect_tracker(address.host, address.port)
        session = tracker.request(address.key, max_retry=1)
    except (RuntimeError, OSError, tvm.error.TVMError) as fault:
        lines = str(fault).strip().splitlines()[-1:] or [type(fault).__name__]
        raise MachineError(f"a board of {address} does not answer: {lines[0]}") from None
    # A small runtime has no such function.
    with suppress(Exception):
        session.get_function("runtime.config_threadpool")(1, threads)
    return session


def remote_device(session: Any, target: tvm.target.Target) -> Any:
    """The device of a session that runs code of a target."""
    kind = str(target.kind.name)
    return session.device("cpu" if kind in ("llvm", "c") else kind, 0)


def linker(target: tvm.target.Target, named: str = "") -> Callable[..., None] | None:
    """Links a library for a target; None for this machine's own compiler.

    Parameters
    ----------
    target : Target
    named : str
        A cross compiler; found on the PATH by the target's triple unless given.

    Raises
    ------
    MachineError
        If there is none.
    """
    if not named and not is_foreign(target):
        return None
    triple = f"{architecture(target)}-linux-gnu"
    names = [named] if named else [f"{triple}-gcc", f"{triple}-g++", f"{triple}-clang"]
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler is None:
        raise MachineError(
            f"no compiler links for {triple} here ({', '.join(names)}): install one "
            f"(Debian: gcc-{triple.replace('_', '-')}), or name it as fingerprint.cross_compiler"
        )
    from tvm.support import cc

    return cc.cross_compiler(compiler)


class BoardModel(CompiledModel):
    """A compiled model on a board.

    Parameters
    ----------
    session : RPCSession
        The board's session.
    executable : relax.VMExecutable or Path
        As built, or the path of an exported library.
    target : Target
    link : callable or None
        Links libraries for the board.
    passed_s : list of float
        Gets the seconds of each run by the board's clock.
    """

    # What its kernels write is not seen from here.
    observed = None  # type: ignore[assignment]

    def __init__(
        self,
        session: Any,
        executable: relax.VMExecutable | Path,
        target: tvm.target.Target,
        link: Callable[..., None] | None,
        passed_s: list[float],
    ) -> None:
        self._passed_s = passed_s
        self.device = remote_device(session, target)
        with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
            # A board's loader does not load a second library of the same name.
            path = Path(scratch) / f"model-{uuid.uuid4().hex}.so"
            if isinstance(executable, Path):
                shutil.copyfile(executable, path)
            else:
                export_library(executable, path, link)
            session.upload(str(path))
        self._function = MAIN
        self._machine = relax.VirtualMachine(session.load_module(path.name), self.device)

    def set_inputs(self, inputs: list[np.ndarray]) -> None:
        """Copy the inputs to the board; `run` uses them until the next call."""
        tensors = [tvm.runtime.tensor(value, self.device) for value in inputs]
        self._machine.set_input(self._function, *tensors)

    def run(self) -> list[tvm.runtime.Tensor]:
        """Run once, timed; returns when the board has finished."""
        timed = self._machine.time_evaluator("invoke_stateful", self.device, number=1)
        self._passed_s.append(timed(self._function).mean)
        return self._finished(self._machine.get_outputs(self._function))


class BoardBuilder:
    """Compiles candidates for a board into a folder.

    Parameters
    ----------
    target_json : str
    folder : str
    compiler : str
        Links libraries; found by the target unless given.
    """

    def __init__(self, target_json: str, folder: str, compiler: str) -> None:
        self._target = target_from_json(target_json)
        self._folder = Path(folder)
        self._link = linker(self._target, compiler)

    def get_ready(self) -> None:
        """Do nothing: nothing has to be made before the first candidate."""

    def build(self, number: int, module_json: str) -> float:
        """Compile candidate ``number``; return the seconds it took."""
        started = time.perf_counter()
        module = as_in_model(module_of(module_json), self._target)
        with without_checks():
            built = compiled(module, self._target)
        path = self._folder / f"{number}.so"
        export_library(built, path, self._link)
        scheduled = module_json if PREPROC in module_json else ""
        layout = [argument_shapes(module["main"]), free_places(module["main"]), scheduled]
        path.with_suffix(".json").write_text(json.dumps(layout))
        return time.perf_counter() - started

    def forget(self) -> int:
        """The memory that this process holds."""
        return psutil.Process().memory_info().rss


class BoardRunner(Worker):
    """Times candidates on one board; keeps its session.

    Parameters
    ----------
    target_json : str
    threads : int
        Threads of a kernel on the board.
    folder : str
        Where builders put candidates.
    at : str
        ``rpc://HOST:PORT/KEY``.
    """

    def __init__(self, target_json: str, threads: int, folder: str, at: str) -> None:
        super().__init__(target_json, threads, 0)
        self._folder = Path(folder)
        self._address = BoardAddress.of(at)
        self._session: Any = None

    def get_ready(self) -> None:
        """Reserve a board now, so that a missing board is noticed early."""
        with suppress(Exception):
            self.connect()

    def connect(self) -> None:
        """Connect to a board, unless a session is alive."""
        if self._session is None:
            session = reserve(self._address, self._threads)
            fill = session.get_function("tvm.contrib.random.random_fill_for_measure")
            device = remote_device(session, self._target)
            self.timer = Timer(self._target, self._threads, device, fill)
            self._checker = Checker(self._target, device)
            self._session = session

    def disconnect(self) -> None:
        """End the session properly: TVM's server ends if a client vanishes during a call."""
        self._built.clear()
        self._session = self._checker = None
        self.timer = Timer(self._target, self._threads)
        gc.collect()

    def forget(self) -> int:
        """Drop all loaded libraries; forget the task."""
        for number in self._built:
            if self._session is not None:
                with suppress(Exception):
                    self._session.remove(f"{number}.so")
        return super().forget()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """End the session if a candidate fails: the next one gets a new session."""
        self.connect()
        try:
            yield
        except Exception:
            self.disconnect()
            raise

    def _kernel(self, number: int) -> BuiltKernel:
        if number not in self._built:
            path = self._folder / f"{number}.so"
            shapes, weights, scheduled = json.loads(path.with_suffix(".json").read_text())
            self._session.upload(str(path))
            code = self._session.load_module(path.name)
            self._built[number] = BuiltKernel(code, [tuple(s) for s in shapes], weights)
            self._scheduled[number] = scheduled
        return self._built[number]


class BoardPool(WorkerPool):
    """Processes that build, and one for each board that measures.

    Parameters
    ----------
    fingerprint : Fingerprint
        Of the boards.
    boards : int

    Attributes
    ----------
    at : str
        Where the boards are, for messages.
    """

    def __init__(self, fingerprint: Fingerprint, boards: int) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fewtune-board-")
        self.folder = Path(self._scratch.name)
        target, threads = fingerprint.target, fingerprint.threads
        folder = str(self.folder)
        settings = (target, folder, fingerprint.cross_compiler)
        super().__init__(target, threads, usable_cores(), _OPTIONS, BoardBuilder, settings)
        self.at = fingerprint.at
        board = (target, threads, folder, self.at)
        self.devices = boards
        self.runners = [WorkerHandle(BoardRunner, board, threads) for _ in range(boards)]
        for runner in self.runners:
            runner.start()

    def close(self) -> None:
        """End every process, release the boards, remove all builds."""
        for runner in self.runners:
            with suppress(WorkerLostError, RequestFailedError):
                runner.call(BACK_S, BoardRunner.disconnect)
            runner.kill()
        super().close()
        self._scratch.cleanup()

    def tidy(self) -> None:
        """Drop all builds, here and on the boards."""
        super().tidy()
        for runner in self.runners:
            try:
                runner.call(BACK_S, BoardRunner.forget)
            except (WorkerLostError, RequestFailedError):
                runner.kill()
        for built in self.folder.iterdir():
            built.unlink()


@dataclass
class BoardMeasurer(Measurer):
    """Builds a batch here and races its candidates on boards, each task on its own."""

    pool: BoardPool
    _board_of: dict[str, int] = field(default_factory=dict)

    def _device(self, specs: Specs) -> int:
        """The board of the tasks with such buffers; new tasks get the boards in turns."""
        return self._board_of.setdefault(repr(specs), len(self._board_of) % self.pool.devices)

    def _handle(self, specs: Specs, built: Built) -> WorkerHandle:
        """The process of the task's board, with a session."""
        runner = self.pool.runners[self._device(specs)]
        try:
            runner.call(2 * BACK_S, BoardRunner.connect)
        except (WorkerLostError, RequestFailedError) as fault:
            raise MachineError(
                f"{' '.join(str(fault).split())}; what was measured is kept: run again when the "
                f"board of {self.pool.at} is there"
            ) from None
        return runner


class Board(Device):
    """Boards of one key behind a tracker, all of one class."""

    can = Capabilities(shared_cores=False, runs_here=False)
    measurer_kind = BoardMeasurer

    @classmethod
    def describe(cls, options: FingerprintOptions) -> Fingerprint:
        """Look for a board, and for a compiler that links code for it.

        Its class is its key and its target: boards of one key are taken to be alike.

        Raises
        ------
        InputError
            If the target is not given as JSON.
        MachineError
            If there is no board of the key, or no compiler links for it here.
        """
        address = BoardAddress.of(options.device)
        if not options.target.strip().startswith("{"):
            raise InputError(
                f"a board needs a target: give one as JSON, such as "
                f'\'{{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", '
                f'"num-cores": 4}}\', not {options.target!r}'
            )
        known = 1 if options.threads == "auto" else options.threads
        target = resolve_target(options.target, known, elsewhere=True)
        cores = int(target.attrs.get("num-cores", 1))
        threads = cores if options.threads == "auto" else options.threads
        linker(target, options.cross_compiler)
        ask_tracker(address)
        return Fingerprint(
            device=f"{address.key} (board behind TVM's RPC)",
            logical_cores=cores,
            system=f"RPC {architecture(target)}",
            target=target_json(target),
            threads=threads,
            versions=versions(),
            at=str(address),
            cross_compiler=options.cross_compiler,
        )

    @property
    def lock(self) -> str:
        """A name for the tracker's key."""
        return re.sub(r"[^\w.-]+", "-", self.fingerprint.at)

    def __init__(self, fingerprint: Fingerprint) -> None:
        super().__init__(fingerprint)
        self._session: Any = None
        self._passed_s: list[float] = []

    def open(self) -> BoardPool:
        """Reserve every free board of the key.

        Raises
        ------
        MachineError
            If there is no board, or no compiler links for it here.
        """
        address = BoardAddress.of(self.fingerprint.at)
        linker(self.target, self.fingerprint.cross_compiler)
        known = ask_tracker(address, BACK_S)
        return BoardPool(self.fingerprint, min(known.free, _MOST_BOARDS))

    @property
    def link(self) -> Callable[..., None] | None:
        """A cross compiler, if the boards have another architecture."""
        return linker(self.target, self.fingerprint.cross_compiler)

    def load(self, executable: relax.VMExecutable | Path) -> BoardModel:
        """A compiled model on a board, whose session is kept for the next model."""
        if self._session is None:
            address = BoardAddress.of(self.fingerprint.at)
            self._session = reserve(address, self.fingerprint.threads)
        return BoardModel(self._session, executable, self.target, self.link, self._passed_s)

    def clock_s(self) -> float:
        """Seconds that models ran, by the board's clock."""
        return sum(self._passed_s)
