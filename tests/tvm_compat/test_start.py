"""TVM started light."""

import os

import pytest

from fewtune.util.nvidia_driver import has_nvidia_driver
from tests.made.command import python


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for name in os.environ:
        if name.endswith("_THREADS"):
            monkeypatch.delenv(name)


@pytest.mark.slow
def test_threads_that_are_given_are_kept():
    asked = """
from fewtune.runtime.tvm import given_threads, tvm
print(tvm.get_global_func("runtime.NumThreads")(), given_threads())
"""
    assert python(asked, TVM_NUM_THREADS="1").stdout == "1 1\n"


@pytest.mark.slow
@pytest.mark.skipif(has_nvidia_driver(), reason="TVM loads CUDA where there is a GPU")
def test_cores_are_the_default_and_back_ends_wait():
    asked = """
import os
from fewtune.runtime.target import host_target, target_from_json
from fewtune.runtime.tvm import given_threads, tvm
from tvm.backend.loader import is_loaded

print(tvm.get_global_func("runtime.NumThreads")() == len(os.sched_getaffinity(0)), given_threads())
host_target(1)
print(is_loaded("cuda"), "TVM_DEVICE_BACKEND_AUTOLOAD" in os.environ)
print(all(map(tvm.get_global_func, ("tvm.contrib.sort.argsort", "tvm.contrib.random.uniform"))))
target_from_json('{"kind": "cuda", "arch": "sm_90"}')
print(is_loaded("cuda"), bool(tvm.get_global_func("tirx.intrinsics.cuda.get_codegen")))
"""
    assert python(asked).stdout.splitlines() == ["True None", "False False", "True", "True True"]
