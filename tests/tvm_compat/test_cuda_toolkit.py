"""CUDA as TVM looks for it, laid out from folders that are not as TVM expects them."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from fewtune.util.nvidia_driver import DRIVER
from tests.made.command import python

USE = """
import os
from fewtune.tvm_compat.cuda_toolkit import use_own_gpu
use_own_gpu()
print(os.environ.get("CUDA_PATH"))
"""


def toolkit(folder: Path, include: str) -> Path:
    (folder / include / "cccl").mkdir(parents=True)
    (folder / include / "cuda_runtime.h").touch()
    (folder / "lib").mkdir()
    # No library, but a file of its name: loading it fails, finding it does not.
    (folder / "lib" / "libcudart.so.13").touch()
    return folder


@pytest.fixture
def driver(tmp_path):
    """The folder of a library that has the driver's name."""
    folder = tmp_path / "driver"
    folder.mkdir()
    command = ["cc", "-shared", "-fPIC", "-x", "c", os.devnull, "-o", str(folder / DRIVER)]
    subprocess.run(command, check=True)
    return str(folder)


def found(driver: str, cuda_path: Path, cache: Path) -> Path:
    paths = {"CUDA_PATH": str(cuda_path), "XDG_CACHE_HOME": str(cache)}
    return Path(python(USE, LD_LIBRARY_PATH=driver, **paths).stdout.strip())


def test_a_toolkit_as_tvm_expects_it_is_taken_as_it_is(tmp_path, driver):
    installed = toolkit(tmp_path / "cuda", f"targets/{platform.machine()}-linux/include")
    assert found(driver, installed, tmp_path / "cache") == installed
    assert not (tmp_path / "cache").exists()


def test_another_layout_is_linked_in_the_users_cache(tmp_path, driver):
    installed = toolkit(tmp_path / "cuda", "include")
    for _ in range(2):
        linked = found(driver, installed, tmp_path / "cache")
        assert linked.parent == tmp_path / "cache" / "fewtune"
        include = linked / "targets" / f"{platform.machine()}-linux" / "include"
        assert include.resolve() == installed / "include"
        assert (linked / "lib" / "libcudart.so.13").exists()
    assert [each.name for each in linked.parent.iterdir()] == [linked.name]
