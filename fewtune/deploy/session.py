"""A session on a tuned library, with onnxruntime's names and meanings."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewtune.deploy.note import TYPES, Function, Note, Tensor, require_runnable
from fewtune.deploy.runtime import DTYPES, Bound, Machine, TVMError, runtime
from fewtune.errors import InputError, MachineError, last_line


def growth_for(
    function: Function, arrays: Sequence[np.ndarray], note: Note
) -> dict[str, int] | None:
    """How much each paddable dimension grows for a function to serve arrays; None if it cannot.

    Only dimensions that the user declared paddable grow, each alike in every input that has it.
    """
    growth: dict[str, int] = {}
    for spec, array in zip(function.inputs, arrays, strict=True):
        if array.ndim != len(spec.shape):
            return None
        named = {each.inputs.get(spec.name): each.name for each in note.paddable}
        for axis, known in enumerate(spec.shape):
            more = known - array.shape[axis]
            if axis in named:
                fits = more >= 0 and growth.setdefault(named[axis], more) == more
            else:
                fits = more == 0
            if not fits:
                return None
    return growth


class Padded:
    """A function of the library that serves smaller inputs: outputs are cut back.

    Parameters
    ----------
    bound : Bound
    growth : mapping of str to int
        Of the padded dimensions (`growth_for`).
    note : Note
    """

    def __init__(self, bound: Bound, growth: Mapping[str, int], note: Note) -> None:
        self._bound, self._growth, self._note = bound, growth, note
        self.text = f"{bound.text}, padded"
        outputs = tuple(map(self._cut, bound.function.outputs))
        self.function = replace(bound.function, outputs=outputs)

    def padded(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays filled up with the values that were declared."""
        made = []
        for spec, array in zip(self._bound.function.inputs, arrays, strict=True):
            for each in self._note.paddable:
                if spec.name in each.inputs:
                    widths = [(0, 0)] * array.ndim
                    widths[each.inputs[spec.name]] = (0, self._growth[each.name])
                    array = np.pad(array, widths, constant_values=array.dtype.type(each.value))
            made.append(array)
        return made

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run on padded arrays."""
        given = zip(self._bound.run(arrays), self.function.outputs, strict=True)
        return [array[tuple(map(slice, spec.shape))] for array, spec in given]

    def _cut(self, spec: Tensor) -> Tensor:
        """An output without what belongs to the padding."""
        shape = list(spec.shape)
        for each in self._note.paddable:
            if spec.name in each.outputs:
                shape[each.outputs[spec.name]] -= self._growth[each.name]
        return replace(spec, shape=tuple(shape))


class Peer:
    """Onnxruntime, which serves the shapes that the library lacks, where that was asked for.

    Parameters
    ----------
    model : Path
        The ONNX file.
    note : Note
    threads : int
    """

    def __init__(self, model: Path, note: Note, threads: int) -> None:
        try:
            onnxruntime = import_module("onnxruntime")
        except ImportError:
            raise MachineError(
                f"{model} is to serve other shapes, and onnxruntime is not installed: install it, "
                "or give no fallback"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(str(model), options)
        except Exception as fault:  # noqa: BLE001 (onnxruntime raises several kinds)
            reason = last_line(fault)
            raise InputError(f"{model} cannot be loaded by onnxruntime: {reason}") from None
        self.function = note.functions[0]
        self.text = "onnxruntime"

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run once."""
        names = [spec.name for spec in self.function.outputs]
        specs = self.function.inputs
        feeds = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
        try:
            return list(self._session.run(names, feeds))
        except Exception as fault:  # noqa: BLE001 (onnxruntime raises several kinds)
            reason = last_line(fault)
            raise InputError(f"onnxruntime cannot run the model on this: {reason}") from None


_ARRAYS = (np.ndarray, np.generic)
# What serves a call.
Runs = Bound | Padded | Peer


class SessionOptions:
    """Options of a session: of onnxruntime's, the number of threads counts.

    Attributes
    ----------
    intra_op_num_threads : int
        0 for as many as the library was tuned for.
    """

    intra_op_num_threads: int = 0


class Argument(NamedTuple):
    """An input or an output, with onnxruntime's names: its type is such as ``tensor(float)``."""

    name: str
    shape: list[int]
    type: str


class InferenceSession:
    """A tuned library, ready to run.

    Parameters
    ----------
    path : str or Path
        A library that fewtune made; no other file is needed.
    sess_options : SessionOptions, optional
        Of it, and of onnxruntime's own, ``intra_op_num_threads`` is used.
    providers, provider_options : optional
        Not used: taken so that a call of onnxruntime's stays as it is.
    threads : int, optional
        That each call runs on; unless given, as many as the library was tuned for, or as this
        process may use if these are fewer.
    fallback : str or Path, optional
        The ONNX file, which onnxruntime runs on shapes that the library lacks.

    Attributes
    ----------
    served_by : str or None
        What served the last call: the shape of the library, padded or not, or onnxruntime.

    Raises
    ------
    InputError
        If the file is no library of fewtune, is damaged, or was made by another version of TVM.
    MachineError
        If it was made for another CPU, or TVM's runtime is not installed.

    Notes
    -----
    A session may be called from any thread. Calls take turns, each on all the library's threads: a
    virtual machine of TVM is for one call at a time. For calls side by side make several sessions
    of one thread. All sessions of a file have as many threads as the last one asked for. A session
    also works in a forked child, which makes threads of its own.
    """

    def __init__(
        self,
        path: str | Path,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        *,
        threads: int | None = None,
        fallback: str | Path | None = None,
    ) -> None:
        self._path = Path(path)
        self._fallback = None if fallback is None else Path(fallback)
        if self._fallback is not None and not self._fallback.is_file():
            raise InputError(f"{fallback} is missing: give the ONNX file, or no fallback")
        self.served_by: str | None = None
        self._peer: Peer | None = None
        self.note = require_runnable(self._path)
        asked = threads or getattr(sess_options, "intra_op_num_threads", 0) or None
        self._threads = _threads(asked, self.note.threads)
        self._inputs = [(spec, DTYPES[spec.dtype]) for spec in self.note.functions[0].inputs]
        names = [spec.name for spec, _ in self._inputs]
        self._names = set(names)
        self._limits = [(names.index(name), *both) for name, both in self.note.limits.items()]
        with _LOADING:
            _require_version(self._path, self.note)
            machine = Machine(self._path, self._threads)
            self._bound = {
                tuple(each.shape for each in one.inputs): Bound(machine, one)
                for one in self.note.functions
            }
            # Not to be waited for by a signal's handler of the thread that holds it.
            self._lock = threading.RLock()
            self._is_running = False
            _SESSIONS.add(self)

    @property
    def shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The inputs' shapes that the library was made for, by the name of each set of them."""
        functions = self.note.functions
        return {each.name: {spec.name: spec.shape for spec in each.inputs} for each in functions}

    def get_inputs(self) -> list[Argument]:
        """The inputs in their order."""
        return [_argument(spec) for spec in self.note.functions[0].inputs]

    def get_outputs(self) -> list[Argument]:
        """The outputs in their order."""
        return [_argument(spec) for spec in self.note.functions[0].outputs]

    def get_providers(self) -> list[str]:
        """What runs the model, by the name that onnxruntime has for this kind of device."""
        return ["CPUExecutionProvider"]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        output_names : sequence of str or None
            Which outputs, in which order; None for all.
        input_feed : mapping of str to array
            An array, or another tensor that DLPack knows, for each input. A number or a list is
            converted; an array of another type is refused.
        run_options
            Not used.

        Returns
        -------
        outputs : list of numpy.ndarray
            The caller's own: no later call changes them.

        Raises
        ------
        InputError
            If names, types, shapes or indices do not fit.
        """
        return [given.copy() for given in self.run_dlpack(output_names, input_feed)]

    def run_with(self, outputs: Mapping[str, Any], input_feed: Mapping[str, Any]) -> None:
        """Run the model once, into arrays that are there already.

        Parameters
        ----------
        outputs : mapping of str to array
            An array, or another tensor that DLPack knows, of the right type and shape for each
            output that is wanted.
        input_feed : mapping of str to array
            As `run` takes it.

        Raises
        ------
        InputError
            As `run`; if an output does not fit or cannot be written.
        """
        places = {name: _shared(name, value) for name, value in outputs.items()}
        numbers = self._numbers(list(places))
        bound, arrays = self._checked(input_feed)
        for number, place in zip(numbers, places.values(), strict=True):
            spec = bound.function.outputs[number]
            if (place.dtype, place.shape) != (DTYPES[spec.dtype], spec.shape):
                raise InputError(
                    f"output {spec.name!r} is {spec.dtype} of shape {spec.shape}, and an array of "
                    f"{place.dtype} of shape {place.shape} was given for it"
                )
            if not place.flags.writeable:
                raise InputError(f"the array for output {spec.name!r} is read-only")
        given = self._called(bound, arrays)
        for number, place in zip(numbers, places.values(), strict=True):
            np.copyto(place, given[number])

    def run_dlpack(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[np.ndarray]:
        """Run the model once, and give the outputs where TVM has them.

        As `run`, without a copy: NumPy's arrays, of which any library of tensors makes its own by
        ``from_dlpack``. No later call changes them. They are to be read only: the memory may be
        that of a weight of the model, or of another output.
        """
        numbers = None if output_names is None else self._numbers(output_names)
        given = self._called(*self._checked(input_feed))
        return given if numbers is None else [given[number] for number in numbers]

    def _numbers(self, names: Sequence[str]) -> list[int]:
        """Where outputs stand."""
        known = [spec.name for spec in self.note.functions[0].outputs]
        if unknown := [name for name in names if name not in known]:
            raise InputError(f"the model has no output {unknown[0]!r}: it has {', '.join(known)}")
        return [known.index(name) for name in names]

    def _serving(self, arrays: list[np.ndarray]) -> tuple[Runs, list[np.ndarray]]:
        """What serves arrays of these shapes, and the arrays for it."""
        bound = self._bound.get(tuple(array.shape for array in arrays))
        if bound is not None:
            return bound, arrays
        # The smallest one that can be padded for.
        for bound in sorted(self._bound.values(), key=lambda each: each.elements):
            growth = growth_for(bound.function, arrays, self.note)
            if growth is not None:
                padded = Padded(bound, growth, self.note)
                return padded, padded.padded(arrays)
        if self._fallback is None:
            raise InputError(_unlike(self.note.functions, arrays))
        with self._lock:
            if self._peer is None:
                self._peer = Peer(self._fallback, self.note, self._threads)
        return self._peer, arrays

    def _checked(self, input_feed: Mapping[str, Any]) -> tuple[Runs, list[np.ndarray]]:
        """The function for what was given, and its arrays in order."""
        if input_feed.keys() != self._names:
            raise InputError(
                f"inputs {sorted(input_feed)} were given, and the model takes {sorted(self._names)}"
            )
        arrays = [_array(spec, dtype, input_feed[spec.name]) for spec, dtype in self._inputs]
        bound, arrays = self._serving(arrays)
        for place, lowest, highest in self._limits:
            array = arrays[place]
            if array.size and (
                np.minimum.reduce(array, axis=None) < lowest
                or np.maximum.reduce(array, axis=None) > highest
            ):
                name = self._inputs[place][0].name
                raise InputError(
                    f"input {name!r} has values from {array.min()} to {array.max()}: as indices "
                    f"they may be {lowest} to {highest}"
                )
        return bound, arrays

    def _called(self, bound: Runs, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Run a function; the outputs share TVM's memory."""
        with self._lock:
            if self._is_running:
                raise InputError(
                    f"{self._path} was called by a signal's handler while the same thread runs it: "
                    "give the handler a session of its own"
                )
            self._is_running = True
            try:
                given = bound.run(arrays)
                self.served_by = bound.text
                return given
            except TVMError as fault:
                raise MachineError(f"{self._path} failed while it ran: {fault}") from None
            finally:
                self._is_running = False


def load(path: str | Path) -> Callable[..., dict[str, np.ndarray]]:
    """Load a tuned library for running.

    Parameters
    ----------
    path : str or Path
        Of the library, such as `TunedModel.library`; no other file is needed.

    Returns
    -------
    run : callable
        ``run(images=array, ...)`` gives the outputs by name; see `InferenceSession.run`.

    Raises
    ------
    InputError, MachineError
        As `InferenceSession`.
    """
    session = InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(None, inputs), strict=True))


def _argument(spec: Tensor) -> Argument:
    return Argument(spec.name, list(spec.shape), TYPES[spec.dtype])


def _threads(asked: int | None, tuned: int) -> int:
    """How many threads a session has."""
    usable = len(os.sched_getaffinity(0))
    if asked is None:
        return min(tuned, usable)
    if not 1 <= asked <= usable:
        raise MachineError(f"{asked} threads were asked for: this process may use {usable} cores")
    return asked


def _require_version(library: Path, note: Note) -> None:
    made = note.versions.get("tvm", "unknown")
    if made != runtime().version:
        raise InputError(
            f"{library} was made by TVM {made}, and this is {runtime().version}: compile the model "
            "again"
        )


def _array(spec: Tensor, dtype: np.dtype[Any], value: Any) -> np.ndarray:
    """What was given for an input as an array of its type, copied only where it has none."""
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    if not isinstance(value, _ARRAYS) and not hasattr(value, "__dlpack__"):
        return _converted(spec, value)
    array = _shared(spec.name, value)
    if array.dtype != dtype:
        raise InputError(
            f"input {spec.name!r} takes {spec.dtype}, and an array of {array.dtype} was given: "
            f"convert it by astype({spec.dtype!r})"
        )
    return array


def _converted(spec: Tensor, value: Any) -> np.ndarray:
    """A number or a list as an array, unless that changes its values' kind."""
    try:
        array = np.asarray(value)
        if array.size and not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            raise ValueError(f"it holds {array.dtype}")
        return np.asarray(value, dtype=spec.dtype)
    except (ValueError, TypeError, OverflowError) as fault:
        raise InputError(
            f"input {spec.name!r} takes an array of {spec.dtype}, and what was given is none: "
            f"{fault}"
        ) from None


def _shared(name: str, value: Any) -> np.ndarray:
    """An array on the memory of what was given."""
    if isinstance(value, _ARRAYS):
        return np.asarray(value)
    try:
        return np.from_dlpack(value)
    except Exception as fault:  # noqa: BLE001 (each library of tensors raises its own)
        raise InputError(
            f"what was given for {name!r} is no array in main memory: {fault}"
        ) from None


def _unlike(functions: Sequence[Function], arrays: Sequence[np.ndarray]) -> str:
    """How shapes differ from those that a library was made for."""
    for place, spec in enumerate(functions[0].inputs):
        known = list(dict.fromkeys(one.inputs[place].shape for one in functions))
        if arrays[place].shape not in known:
            return (
                f"input {spec.name!r} has shape {arrays[place].shape}, and the library was made "
                f"for {' or '.join(map(str, known))}"
            )
    return "the library was made for each of these shapes, and not for all of them at once"


# Sessions of this process, a lock that is held while one is loaded, and the sessions that no call
# uses while the process forks.
_SESSIONS: weakref.WeakSet[InferenceSession] = weakref.WeakSet()
_LOADING = threading.RLock()
_HELD: list[InferenceSession] = []


def _before_fork() -> None:
    """Wait until no session is loaded or called: a child has none of the threads that do so."""
    _LOADING.acquire()
    for session in sorted(_SESSIONS, key=id):
        session._lock.acquire()
        _HELD.append(session)


def _after_fork(*, in_child: bool) -> None:
    while _HELD:
        session = _HELD.pop()
        session._lock.release()
        if in_child:
            # onnxruntime's threads are the parent's.
            session._peer = None
    _LOADING.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, in_child=False),
    after_in_child=partial(_after_fork, in_child=True),
)
