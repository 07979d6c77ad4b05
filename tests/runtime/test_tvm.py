"""TVM started light; modules read as it wrote them, by this version or another."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fewtune.runtime.tvm import read_module, te, tvm
from fewtune.util.nvidia_driver import has_nvidia_driver


def written() -> str:
    rows = te.placeholder((4, 8), name="rows")
    total = te.compute((4, 8), lambda i, j: rows[i, j] + 1.0, name="total")
    return tvm.ir.save_json(tvm.IRModule({"main": te.create_prim_func([rows, total])}))


@pytest.mark.parametrize("version", [tvm.__version__, "0.26.0"])
def test_a_module_is_read_as_tvm_reads_it(version: str) -> None:
    graph = json.loads(written())
    assert graph["metadata"] == {"tvm_version": tvm.__version__}
    graph["metadata"]["tvm_version"] = version
    text = json.dumps(graph)
    tvm.ir.assert_structural_equal(read_module(text), tvm.ir.load_json(text))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"metadata": []}', written()[:-20]])
def test_what_is_no_module_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)):
        read_module(text)


@pytest.mark.slow
@pytest.mark.skipif(has_nvidia_driver(), reason="TVM loads CUDA where there is a GPU")
def test_back_ends_of_other_devices_wait_for_a_target_of_theirs() -> None:
    asked = """
import os
from fewtune.runtime.target import host_target, target_from_json
from fewtune.runtime.tvm import tvm
from tvm.backend.loader import is_loaded

host_target(1)
print(is_loaded("cuda"), "TVM_DEVICE_BACKEND_AUTOLOAD" in os.environ)
print(all(map(tvm.get_global_func, ("tvm.contrib.sort.argsort", "tvm.contrib.random.uniform"))))
target_from_json('{"kind": "cuda", "arch": "sm_90"}')
print(is_loaded("cuda"), bool(tvm.get_global_func("tirx.intrinsics.cuda.get_codegen")))
"""
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["False False", "True", "True True"]
