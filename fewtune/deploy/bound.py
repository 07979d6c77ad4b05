"""A function of a library with all that its calls reuse: tensors of inputs, views of outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from fewtune.deploy.note import TYPES, Function, Tensor
from fewtune.deploy.runtime import (
    Call,
    DLTensor,
    Machine,
    ManagedTensor,
    Object,
    addresses_in,
    tensor_at,
)

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
        self.fields = tensor_at(self.tensor.handle)

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
