"""How a library holds its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.tvm_compat.start import tvm

# Before the bytes: where TVM looks for them, and that code here needs no stack.
_ASSEMBLY = """
    .section .note.GNU-stack, "", %progbits
    .section .rodata
    .globl __tvm_ffi__library_bin
    .p2align 6
__tvm_ffi__library_bin:
    .incbin {}
"""


def packed_as_bytes(module: Any, _is_system_lib: bool, _prefix: str, folder: str) -> str:
    """Write what a library imports, such as weights, for the C compiler: LLVM takes 7 s for 730 MB.

    Test: tests/tvm_compat/test_packing.py::test_weights_are_linked_without_llvm
    """
    file, assembly = Path(folder, "weights.bin"), Path(folder, "weights.s")
    np.from_dlpack(tvm.get_global_func("runtime.ModulePackImportsToTensor")(module)).tofile(file)
    assembly.write_text(_ASSEMBLY.format(json.dumps(str(file), ensure_ascii=False)))
    return str(assembly)
