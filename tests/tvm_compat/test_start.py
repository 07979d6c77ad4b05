"""TVM started light."""

import os
import subprocess
import sys

import pytest

from fewtune.util.nvidia_driver import has_nvidia_driver


def printed(script: str, **environment: str) -> list[str]:
    """The lines that a Python process prints which runs a script."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()


@pytest.mark.slow
def test_threads_that_are_given_are_kept():
    asked = """
from fewtune.runtime.tvm import given_threads, tvm
print(tvm.get_global_func("runtime.NumThreads")(), given_threads())
"""
    assert printed(asked, TVM_NUM_THREADS="1") == ["1 1"]


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
    assert printed(asked) == ["True None", "False False", "True", "True True"]
