"""Intrinsics registered without a look at the source of what calls are the same intrinsics."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

LIGHTLY = "from fewtune.runtime import intrinsics; intrinsics.register_own()"
AS_TVM = "import fewtune.runtime.tvm, tvm.s_tir.tensor_intrin.{family}"
TOLD = """
import hashlib, inspect
import tvm
names = sorted(n for n in dir(m) if n.endswith("_INTRIN"))
for name in names:
    intrinsic = tvm.s_tir.TensorIntrin.get(getattr(m, name))
    for function in (intrinsic.desc, intrinsic.impl):
        print(name, hashlib.sha256(tvm.ir.save_json(function).encode()).hexdigest())
print(inspect.stack()[0].function)
"""


@pytest.mark.slow
def test_they_are_what_tvm_itself_registers() -> None:
    family = "x86" if platform.machine() == "x86_64" else "arm_cpu"
    module = f"\nimport tvm.s_tir.tensor_intrin.{family} as m"
    found = [
        subprocess.run(
            [sys.executable, "-c", way + module + TOLD], capture_output=True, text=True, check=True
        ).stdout
        for way in (LIGHTLY, AS_TVM.format(family=family))
    ]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) > 2
