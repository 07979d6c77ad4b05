"""Intrinsics registered without a look at the source of what calls are the same intrinsics."""

import inspect
import platform

import pytest

from fewtune.tvm_compat.intrinsics import frames_without_source
from tests.made.command import python

LIGHTLY = "from fewtune.runtime.tvm import register_own_intrinsics; register_own_intrinsics()"
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
def test_they_are_what_tvm_itself_registers():
    family = "x86" if platform.machine() == "x86_64" else "arm_cpu"
    module = f"\nimport tvm.s_tir.tensor_intrin.{family} as m"
    ways = (LIGHTLY, AS_TVM.format(family=family))
    found = [python(way + module + TOLD).stdout for way in ways]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) > 2


@pytest.mark.slow
def test_intrinsics_of_other_devices_are_not_parsed():
    script = "import sys; from fewtune.runtime.tvm import ms; print(*sys.modules)"
    loaded = python(script).stdout.split()
    package = "tvm.s_tir.tensor_intrin"
    assert [name for name in loaded if name.startswith(package)] == [package]


def test_frames_have_no_source_within_the_block():
    with frames_without_source():
        found = inspect.stack()[0]
    assert (found.function, found.code_context) == (
        test_frames_have_no_source_within_the_block.__name__,
        None,
    )
    assert inspect.stack()[0].code_context is not None
