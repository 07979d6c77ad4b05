"""A library for a GPU that this machine lacks: its device code is found by reading the file."""

import importlib.util
import json
import struct
import subprocess
import sys

import pytest

from fewtune.compile.device_code import compile_for_gpu, device_architectures, gpu_target
from fewtune.errors import InputError, MachineError
from tests import tuned_tiny

HAS_COMPILER = importlib.util.find_spec("nvidia") is not None and (
    importlib.util.find_spec("cuda") is not None
)


def elf(machine: int, flags: int) -> bytes:
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<I", header, 48, flags)
    return bytes(header)


def test_device_code_is_found_in_a_library_by_its_magic(tmp_path):
    library = tmp_path / "model.so"
    host, code = elf(62, 0), elf(190, 0x6005A04)
    library.write_bytes(host + b"source text" + code + elf(190, 0x6005004))
    assert device_architectures(library) == [80, 90]
    # Text is no code, and another library within it is not a GPU's.
    library.write_bytes(host + b"__global__ void main_kernel()" + host)
    assert device_architectures(library) == []


def test_an_architecture_is_one_of_a_gpu():
    assert json.loads(gpu_target("sm_90a"))["arch"] == "sm_90a"
    for wrong in ("90", "sm_20", "sm_x", "gfx90a"):
        with pytest.raises(InputError, match="such as sm_90"):
            gpu_target(wrong)


def test_tvm_is_not_loaded_before_the_compiler_is_ready():
    asked = "import sys, fewtune.compile.device_code; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


@pytest.mark.skipif(HAS_COMPILER, reason="NVIDIA's compiler is installed")
def test_a_missing_compiler_is_named(tmp_path):
    with pytest.raises(MachineError, match=r"fewtune\[cuda\]"):
        compile_for_gpu("tiny", tmp_path, "sm_90", tmp_path / "out")


@pytest.mark.skipif(not HAS_COMPILER, reason="NVIDIA's compiler is not installed")
def test_a_model_is_compiled_for_a_gpu_that_is_not_here(tmp_path):
    tuned_tiny.imported()
    made = compile_for_gpu(
        tuned_tiny.NAME, tuned_tiny.scratch() / "models", "sm_90", tmp_path / "out"
    )
    assert made.architectures == [90]
    assert made.unscheduled == 0
    assert made.relative_error < 1e-5
