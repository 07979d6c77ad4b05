"""A lowered module on disk: its text for TVM, and its weights beside it.

TVM writes weights into that text: reading the 574 MB of VGG 19 took 17.6 s, in four steps of a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewtune.artifacts import text_sha256, unchanged_text
from fewtune.errors import InputError
from fewtune.runtime.tvm import read_module, relax, tvm
from fewtune.task.analysis import model_functions
from fewtune.tvm_compat.values import is_constant
from fewtune.util.files import write_text

LOWERED, WEIGHTS = "lowered.json", "weights.npz"
# The name of a parameter that stands for weights, by their digest: no input has such a name.
_NAME = re.compile("weights_[0-9a-f]{64}")
# Smaller constants stay in the text, as do those of types that NumPy lacks.
_LEAST_BYTES = 2**16
_TYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")


def write_stored(module: tvm.IRModule, directory: Path) -> str:
    """Write a module; return the digest of its text, which holds the digests of its weights."""
    arrays: dict[str, Any] = {}
    kept = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    for name in model_functions(module):
        naming = _Naming(arrays)
        visited = naming.visit_expr(module[name])
        parameters = [*visited.params, *naming.parameters.values()]
        kept[module.get_global_var(name)] = relax.Function(
            parameters, visited.body, visited.ret_ty, visited.is_pure, visited.attrs
        )
    text = tvm.ir.save_json(kept)
    np.savez(directory / WEIGHTS, **arrays)
    write_text(directory / LOWERED, text)
    return text_sha256(text)


def read_stored(directory: Path, sha256: str) -> tvm.IRModule:
    """Read what `write_stored` wrote.

    Raises
    ------
    InputError
        If a file is missing or damaged.
    """
    module = read_module(unchanged_text(directory / LOWERED, sha256))
    path = directory / WEIGHTS
    try:
        with np.load(path, allow_pickle=False) as stored:
            _bind(module, stored)
    except Exception as fault:  # noqa: BLE001 (zipfile, zlib and numpy raise many classes)
        raise InputError(
            f"{path} is not what its stage wrote ({fault}): run that stage again"
        ) from None
    return module


def _bind(module: tvm.IRModule, stored: Mapping[str, np.ndarray]) -> None:
    """Put weights into the functions of a module."""
    constants: dict[str, relax.Expr] = {}
    for name in model_functions(module):
        function = module[name]
        wanted = [each for each in function.params if _NAME.fullmatch(each.name)]
        for parameter in wanted:
            if parameter.name not in constants:
                array = stored[parameter.name]
                if _name_of(array) != parameter.name:
                    raise ValueError(f"other weights are named {parameter.name}")
                # Of an array, Relax would make integers of 32 bits.
                constants[parameter.name] = relax.const(tvm.runtime.tensor(array))
        bound = {parameter: constants[parameter.name] for parameter in wanted}
        module[module.get_global_var(name)] = function.bind_params(bound)


def _name_of(array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return f"weights_{digest.hexdigest()}"


@relax.expr_functor.mutator
class _Naming(relax.PyExprMutator):
    """Replaces the weights of kernels' calls by parameters that are named by their digest."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        super().__init__()
        self._arrays = arrays
        self.parameters: dict[str, relax.Var] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace what one call is given."""
        if getattr(call.op, "name", None) != "relax.call_tir":
            return super().visit_call_(call)
        given = relax.Tuple([self._named(each) for each in call.args[1].fields])
        return relax.Call(call.op, [call.args[0], given, *call.args[2:]], call.attrs, call.ty_args)

    def _named(self, argument: relax.Expr) -> relax.Expr:
        if not is_constant(argument) or str(argument.value.dtype) not in _TYPES:
            return self.visit_expr(argument)
        # Not copied.
        array: Any = np.from_dlpack(argument.value)
        if array.nbytes < _LEAST_BYTES:
            return argument
        name = _name_of(array)
        self._arrays[name] = array
        return self.parameters.setdefault(name, relax.Var(name, argument.ty))
