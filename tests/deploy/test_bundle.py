"""A bundle runs where there is nothing but NumPy, and where there is no Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import fewtune
from fewtune.errors import InputError
from fewtune.pipelines.cli import main
from tests.made import libraries

X = np.linspace(-1, 1, libraries.ROWS * libraries.COLUMNS, dtype="float32")
IDS = np.array([0, 9, 4])
ARRAYS = {"x": X.reshape(libraries.ROWS, libraries.COLUMNS), "ids": IDS}
IN_PYTHON = """
import json, sys, numpy, fewtune
session = fewtune.InferenceSession("model.so")
x, ids = numpy.fromfile("x.bin", "float32"), numpy.fromfile("ids.bin", "int64")
outputs = session.run(None, {"x": x.reshape(session.get_inputs()[0].shape), "ids": ids})
foreign = {"tvm", "tvm_ffi", "pydantic", "onnx"} & {name.split(".")[0] for name in sys.modules}
print(json.dumps([[float(each) for each in output.ravel()[:10]] for output in outputs]))
sys.exit(f"loaded {foreign}" if foreign else 0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bundles")
    written = fewtune.bundle(libraries.library(made / "made.so"), made / "bundle")
    X.tofile(written / "x.bin")
    IDS.tofile(written / "ids.bin")
    return written


@pytest.fixture(scope="module")
def expected(folder):
    outputs = fewtune.InferenceSession(folder / "model.so").run(None, ARRAYS)
    return [output.ravel()[:10].tolist() for output in outputs]


def run(command, folder, **environment):
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_bare_python_with_numpy_runs_it(folder, expected, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (installed := Path(np.__file__).parents[1] / name).exists():
            (packages / name).symlink_to(installed)
    path = f"{folder}:{packages}"
    # Without the packages of this environment.
    python = [sys.executable, "-S", "-B", "-c", IN_PYTHON]
    done = run(python, folder, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@pytest.fixture(scope="module")
def compiled(folder):
    """A folder without Python: the library, TVM's runtime, and the example by the page's words."""
    command = re.search(r"```sh\n(.*?)\./example", (folder / "README.md").read_text(), re.DOTALL)
    subprocess.run(["sh", "-ec", command[1].replace("-O2", "-O0")], cwd=folder, check=True)
    alone = folder.parent / "alone"
    shutil.copytree(folder / "lib", alone / "lib")
    for name in ("example", "model.so", "x.bin", "ids.bin"):
        shutil.copy(folder / name, alone / name)
    return alone


@pytest.mark.slow
def test_the_example_in_c_plus_plus_computes_the_same(compiled, expected):
    done = run(["./example", "model.so", "x.bin", "ids.bin"], compiled)
    assert done.returncode == 0, done.stderr
    lines = [line.partition(":")[2].split() for line in done.stdout.splitlines()]
    for given, wanted in zip(lines, expected, strict=True):
        np.testing.assert_array_equal(np.array(given, "float32"), np.array(wanted, "float32"))


@pytest.mark.slow
def test_the_example_refuses_in_one_sentence(compiled):
    np.array([0, 10, 0]).tofile(compiled / "beyond.bin")
    whole = (compiled / "model.so").read_bytes()
    (compiled / "cut.so").write_bytes(whole[:-1])
    (compiled / "empty.so").write_bytes(b"")
    foreign = libraries.note(extensions=("no_such_extension",))
    libraries.library(compiled / "foreign.so", extensions=foreign.extensions)
    for arguments, word in {
        ("model.so", "x.bin", "beyond.bin"): "value 10",
        ("model.so", "ids.bin"): "bytes",
        ("cut.so",): "cut off",
        ("empty.so",): "cut off",
        ("missing.so",): "cannot be read",
        ("foreign.so",): "no_such_extension",
    }.items():
        done = run(["./example", *arguments], compiled)
        assert done.returncode == 2
        assert word in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_command_packs_the_same_files(folder, tmp_path, capsys):
    assert main(["bundle", str(folder / "model.so"), "--to", str(tmp_path / "it.tar.gz")]) == 0
    with tarfile.open(tmp_path / "it.tar.gz") as archive:
        packed = {Path(each.name) for each in archive if each.isfile()}
    inputs = {"x.bin", "ids.bin", "example"}
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert packed == {Path("it") / path for path in files if path.name not in inputs}
    for package in ("fewtune", "tvm", "tvm-ffi"):
        assert any(path.match(f"LICENSES/{package}/*") for path in files)


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_nothing_that_is_there_is_touched(folder, tmp_path, there):
    to = tmp_path / "it.tar.gz"
    if there == "folder":
        to.mkdir()
    elif there == "file":
        to.write_text("mine")
    else:
        to.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="there already"):
        fewtune.bundle(folder / "model.so", to)
    assert [path.name for path in tmp_path.iterdir()] == ["it.tar.gz"]


def test_a_damaged_library_is_not_bundled(folder, tmp_path):
    damaged = bytearray((folder / "model.so").read_bytes())
    damaged[5000] ^= 1
    (tmp_path / "model.so").write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        fewtune.bundle(tmp_path / "model.so", tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]
