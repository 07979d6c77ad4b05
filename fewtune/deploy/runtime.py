"""TVM's runtime through its C ABI (``tvm/ffi/c_api.h``): no compiled Python module is needed.

Loading it takes a few milliseconds; TVM's Python package with its compiler takes a second and more.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fewtune.deploy.note import TYPES, Function, Tensor
from fewtune.errors import InputError, MachineError

FFI, RUNTIME = "libtvm_ffi.so", "libtvm_runtime.so"
# The folder of a bundle's libraries of TVM, beside its packages, and the file of their version.
OWN_FOLDER, VERSION = Path(__file__).parents[2] / "lib", "version.txt"
# The version of the C ABI that is spoken here.
_ABI = (0, 1)
# Indices of types.
_NONE, _INT, _TEXT, _TENSOR, _ARRAY, _FIRST_OBJECT = 0, 1, 8, 70, 71, 64
# Where an object's content begins, behind counts of references, type and deleter.
_HEADER_BYTES = 24
# Of an ELF file's header: where its segments are described, how many bytes each takes, how many
# there are; of a segment: its kind, what is allowed on it, its address, its length.
_ELF, _SEGMENT = struct.Struct("<32xQ14xHH"), struct.Struct("<II8xQ8xQ")
# An array's content, or a text's: its address, and how many values or bytes it has.
_PAIR = ctypes.c_int64 * 2
# A `DLTensor` as words: the first is its data's address, the last an offset in bytes.
_WORDS = ctypes.c_int64 * 6
# Loaded, and only read.
_READ_ONLY = (1, 4)
# TVM's numbers for the first CPU and its allocator that keeps freed memory.
_CPU, _POOLED = 1, 2
Loaded = TypeVar("Loaded")


class TVMError(Exception):
    """What TVM's runtime says of a call that failed, in one line."""


class Any_(ctypes.Structure):  # noqa: N801 (the ABI's name is Any, which Python has)
    """A value of the ABI."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("value", ctypes.c_int64),
    )


class DLTensor(ctypes.Structure):
    """DLPack's view of a tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class ManagedTensor(ctypes.Structure):
    """DLPack's tensor with an owner; without a deleter, whoever made it keeps its memory."""

    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Object:
    """An owned reference to an object of TVM, and the index of its type."""

    __slots__ = ("_release", "handle", "kind")

    def __init__(self, handle: int, kind: int, release: Callable[[int], int]) -> None:
        self.handle, self.kind, self._release = handle, kind, release

    def __del__(self) -> None:
        self._release(self.handle)


class Call:
    """A function with its arguments, laid out once; a call gives an integer, an object or None."""

    def __init__(
        self, runtime: Runtime, function: Object, arguments: Sequence[int | str | Object]
    ) -> None:
        self._runtime, self._result = runtime, Any_()
        values = (Any_ * max(1, len(arguments)))()
        # What the addresses lead to.
        self._kept: list[Any] = [function, values, *arguments]
        for value, argument in zip(values, arguments, strict=False):
            if isinstance(argument, Object):
                value.type, value.value = argument.kind, argument.handle
            elif isinstance(argument, str):
                text = ctypes.create_string_buffer(argument.encode())
                self._kept.append(text)
                value.type, value.value = _TEXT, ctypes.addressof(text)
            else:
                value.type, value.value = _INT, argument
        addresses = ctypes.addressof(values), len(arguments), ctypes.addressof(self._result)
        self._given = function.handle, *addresses

    def __call__(self) -> Any:
        result = self._result
        result.type = result.value = 0
        if self._runtime.call_raw(*self._given):
            raise TVMError(self._runtime.raised())
        if result.type >= _FIRST_OBJECT:
            return Object(result.value, result.type, self._runtime.release)
        return None if result.type == _NONE else result.value


class Runtime:
    """TVM's runtime, loaded into this process."""

    def __init__(self) -> None:
        ffi, runtime, self.version = found()
        try:
            self._ffi = ctypes.CDLL(str(ffi), ctypes.RTLD_GLOBAL)
            self._runtime = ctypes.CDLL(str(runtime), ctypes.RTLD_GLOBAL)
        except OSError as fault:
            raise MachineError(f"TVM's runtime cannot be loaded: {fault}") from None
        version = (ctypes.c_uint32 * 3)()
        self._ffi.TVMFFIGetVersion(version)
        if tuple(version)[:2] != _ABI:
            raise MachineError(
                f"{ffi} has version {version[0]}.{version[1]}, and this takes {_ABI[0]}.{_ABI[1]}: "
                "install the apache-tvm-ffi that apache-tvm asks for"
            )
        self.call_raw = self._ffi.TVMFFIFunctionCall
        self.call_raw.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
        self.release = self._ffi.TVMFFIObjectDecRef
        self.release.argtypes = [ctypes.c_void_p]

    def owned(self, handle: int) -> Object:
        """A reference that is given up when the result goes."""
        return Object(handle, ctypes.c_int32.from_address(handle + 8).value, self.release)

    def call(self, function: Object, *arguments: int | str | Object) -> Any:
        """Call a function; gives an integer, an object or None."""
        return Call(self, function, arguments)()

    def named(self, name: str) -> Object:
        """A function that TVM registers under a name."""
        text, handle = name.encode(), ctypes.c_void_p()
        buffer = ctypes.create_string_buffer(text)
        key = _PAIR(ctypes.addressof(buffer), len(text))
        self._ffi.TVMFFIFunctionGetGlobal(ctypes.byref(key), ctypes.byref(handle))
        if not handle.value:
            raise MachineError(f"TVM's runtime has no function {name!r}: install apache-tvm")
        return self.owned(handle.value)

    def tensor(self, managed: ManagedTensor) -> Object:
        """A tensor whose memory, shape and struct the caller keeps."""
        handle = ctypes.c_void_p()
        if self._ffi.TVMFFITensorFromDLPack(ctypes.byref(managed), 0, 1, ctypes.byref(handle)):
            raise TVMError(self.raised())
        return self.owned(handle.value or 0)

    def raised(self) -> str:
        """What the last failed call says, in one line."""
        handle = ctypes.c_void_p()
        self._ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
        if not handle.value:
            return "TVM says no reason"
        error = self.owned(handle.value)
        pairs = (_PAIR * 2).from_address(error.handle + _HEADER_BYTES)
        texts = [ctypes.string_at(*pair).decode() for pair in pairs]
        return " ".join(": ".join(texts).split())


def addresses_in(given: Any) -> list[int]:
    """Where the tensors that a call gave have their numbers: of one, or of an array of them."""
    kind = given.kind if isinstance(given, Object) else _NONE
    if kind == _TENSOR:
        handles = [given.handle]
    elif kind == _ARRAY:
        data, count = _PAIR.from_address(given.handle + _HEADER_BYTES)
        # Of each value, the second half.
        handles = (ctypes.c_int64 * (2 * count)).from_address(data)[1::2] if count else []
    else:
        raise TVMError(f"the library gave an object of type {kind}, no tensors")
    found = []
    for handle in handles:
        words = _WORDS.from_address(handle + _HEADER_BYTES)
        found.append(words[0] + words[-1])
    return found


@cache
def runtime() -> Runtime:
    """TVM's runtime, loaded once a process.

    Raises
    ------
    MachineError
        If it is not installed, or of a kind that is unknown here.
    """
    return Runtime()


def found() -> tuple[Path, Path, str]:
    """Where the two libraries are, and TVM's version: in a bundle, or in the installed wheels."""
    if (OWN_FOLDER / RUNTIME).is_file() and "tvm" not in sys.modules:
        return OWN_FOLDER / FFI, OWN_FOLDER / RUNTIME, (OWN_FOLDER / VERSION).read_text().strip()
    places = []
    for package, name in (("tvm_ffi", FFI), ("tvm", RUNTIME)):
        # Finding a package does not import it.
        spec = importlib.util.find_spec(package)
        folders = [] if spec is None else list(spec.submodule_search_locations or [])
        places += [path for each in folders if (path := Path(each) / "lib" / name).is_file()][:1]
    if len(places) < 2:
        raise MachineError("TVM's runtime is not installed: install apache-tvm, or use a bundle")
    version = places[1].parent.parent / "_version.py"
    text = version.read_text() if version.is_file() else ""
    told = re.search(r"^__version__ = .*'([^']+)'$", text, re.MULTILINE)
    return places[0], places[1], told[1] if told else "unknown"


class Machine:
    """A loaded library with TVM's virtual machine on it: for one thread at a time.

    Its kernels run on so many threads, which all machines of a library share.

    Raises
    ------
    InputError
        If TVM cannot load the library.
    """

    def __init__(self, library: Path, threads: int) -> None:
        self.runtime = runtime()
        call, named = self.runtime.call, self.runtime.named
        self._lookup = named("ffi.ModuleGetFunction")
        try:
            load = named("ffi.Module.load_from_file.so")
            executable = load_as_on_disk(library, lambda path: call(load, path, "so"))
            self._machine = call(call(self._lookup, executable, "vm_load_executable", 1))
            start = call(self._lookup, self._machine, "vm_initialization", 1)
            call(start, _CPU, 0, _POOLED)
            _forget_pages(library)
            call(self.function("fewtune_set_threads", executable), threads)
        except TVMError as fault:
            raise InputError(f"TVM cannot load {library} ({fault}): compile it again") from None

    def function(self, name: str, module: Object | None = None) -> Object:
        """A function of the virtual machine, or of another module."""
        found = self.runtime.call(self._lookup, module or self._machine, name, 1)
        if not isinstance(found, Object):
            raise InputError(f"the library has no function {name!r}: compile the model again")
        return found


def _forget_pages(library: Path) -> None:
    """Give back the memory of a mapped library's constants: the machine has copies of the weights.

    Only segments that are never written: the kernel reads a page of such a one again where needed.
    """
    bases = _addresses_of(library)
    if not bases:
        return
    with library.open("rb") as stream:
        begin, size, count = _ELF.unpack(stream.read(_ELF.size))
        stream.seek(begin)
        segments = [_SEGMENT.unpack(stream.read(size)[: _SEGMENT.size]) for _ in range(count)]
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for kind, mode, address, length in segments:
        if (kind, mode) == _READ_ONLY:
            first = -(-(min(bases) + address) // mmap.PAGESIZE) * mmap.PAGESIZE
            last = (min(bases) + address + length) // mmap.PAGESIZE * mmap.PAGESIZE
            madvise(first, max(0, last - first), mmap.MADV_DONTNEED)


def load_as_on_disk(library: Path, load: Callable[[str], Loaded]) -> Loaded:
    """Load a library's file as it is on disk now.

    A loader returns an earlier library of the same path as long as it is in use, even if another
    file lies there now. A model that is tuned twice in a process would then run as it was the first
    time. So a file that is not mapped after its loading is loaded from a copy.
    """
    path = library.resolve()
    loaded = load(str(path))
    if _addresses_of(path):
        return loaded
    # A link does not do: the loader follows it.
    with tempfile.TemporaryDirectory(prefix="fewtune-") as scratch:
        return load(shutil.copyfile(path, f"{scratch}/{path.name}"))


def _addresses_of(path: Path) -> list[int]:
    """Where a file is mapped into this process's memory, under any name."""
    inode = str(path.stat().st_ino)
    with open("/proc/self/maps") as lines:
        mapped = [words for line in lines if (words := line.split(maxsplit=5))[4] == inode]
    return [int(place.split("-")[0], 16) for place, *_ in mapped]


DTYPES = {name: np.dtype(name) for name in TYPES}
# Kernels read inputs by instructions that want addresses that are multiples of this.
_ALIGNMENT = 64
# So many bytes are copied sooner than NumPy tells an array's address.
_COPIED_BYTES = 1 << 14
# DLPack's codes of types by NumPy's kinds.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class Bound:
    """A function of a library, ready to run: by one thread at a time."""

    def __init__(self, machine: Machine, function: Function) -> None:
        self.function = function
        self.elements = sum(int(np.prod(spec.shape)) for spec in function.inputs)
        named = [] if function.name == function.function else [f"{function.name}:"]
        shapes = (f"{spec.name}={'x'.join(map(str, spec.shape))}" for spec in function.inputs)
        self.text = " ".join([*named, *shapes])
        self._machine = machine
        self._slots = [_Slot(machine, spec) for spec in function.inputs]
        self._views = [_view(spec) for spec in function.outputs]
        tensors = [slot.tensor for slot in self._slots]
        self._call = Call(machine.runtime, machine.function(function.function), tensors)

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for arrays that fit, where TVM has them."""
        for slot, array in zip(self._slots, arrays, strict=True):
            slot.take(array)
        owner = self._call()
        outputs = []
        for view, address in zip(self._views, addresses_in(owner), strict=True):
            memory = view(address, owner)
            # An output may be an input as it is, whose memory is another's.
            if any(slot.holds(address) for slot in self._slots):
                memory = memory.copy()
            outputs.append(memory)
        return outputs


class _Slot:
    """An input's tensor: it lies on memory of its own, or on the caller's where that is aligned."""

    def __init__(self, machine: Machine, spec: Tensor) -> None:
        dtype = DTYPES[spec.dtype]
        self._bytes = int(np.prod(spec.shape)) * dtype.itemsize
        raw = np.zeros(self._bytes + _ALIGNMENT, np.uint8)
        begin = -raw.ctypes.data % _ALIGNMENT
        self._staging = raw[begin : begin + self._bytes].view(dtype).reshape(spec.shape)
        self._own_address = self._address = self._staging.ctypes.data
        self._shape = (ctypes.c_int64 * max(1, len(spec.shape)))(*spec.shape)
        self._managed = ManagedTensor(
            DLTensor(
                data=self._address,
                device_type=1,
                ndim=len(spec.shape),
                code=_CODES[dtype.kind],
                bits=8 * dtype.itemsize,
                lanes=1,
                shape=ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64)),
            )
        )
        self.tensor = machine.runtime.tensor(self._managed)
        # The fields of TVM's own struct, which may be written.
        self.fields = DLTensor.from_address(self.tensor.handle + _HEADER_BYTES)

    def take(self, array: np.ndarray) -> None:
        """Hold an array's values for the next call; the array stays until its end."""
        if self._bytes > _COPIED_BYTES and array.flags.c_contiguous:
            address = array.ctypes.data
            if address % _ALIGNMENT == 0:
                self.fields.data = self._address = address
                return
        self._staging[...] = array
        if self._address != self._own_address:
            self.fields.data = self._address = self._own_address

    def holds(self, address: int) -> bool:
        """Whether some memory is what the input lies on."""
        return 0 <= address - self._address < (self._bytes or 1)


def _view(spec: Tensor) -> Any:
    """What makes an array on memory of TVM, which stays as long as NumPy uses it."""
    dtype, shape = DTYPES[spec.dtype], spec.shape
    size = int(np.prod(shape)) * dtype.itemsize
    # A class of its own, since arrays of ctypes' own take no attribute.
    kind: Any = type("Memory", (ctypes.c_char * size,), {})

    def view(address: int, owner: Object) -> np.ndarray:
        memory = kind.from_address(address)
        memory.owner = owner
        return np.ndarray(shape, dtype, memory)

    return view
