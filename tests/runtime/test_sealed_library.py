"""Libraries that are cut off, damaged, foreign or made for another machine are never mapped."""

import subprocess

import numpy as np
import pytest

from fewtune.errors import FewtuneError, InputError, MachineError
from fewtune.runtime import host_features, sealed_library
from fewtune.runtime.linking import export_library, load_library
from fewtune.runtime.sealed_library import read_note, require_runnable, seal
from fewtune.runtime.tvm import compiled, te, tvm
from tests import tuned_tiny


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("sealed") / "model.so"
    data = te.placeholder((1,), "float32")
    result = te.compute((1,), lambda i: data[i] + 1)
    module = tvm.IRModule({"main": te.create_prim_func([data, result])})
    export_library(compiled(module, tuned_tiny.target()), path)
    seal(path, tuned_tiny.fingerprint())
    return path


def test_a_sealed_library_runs_and_says_what_it_is(library):
    note = require_runnable(library)
    assert note.target == tuned_tiny.fingerprint().target
    given, written = (tvm.runtime.tensor(np.zeros(1, "float32")) for _ in range(2))
    load_library(library)["main"](given, written)
    assert written.numpy()[0] == 1


def test_whatever_is_changed_is_refused(library, tmp_path):
    content, changed = library.read_bytes(), tmp_path / "changed.so"
    generator = np.random.default_rng(0)
    places = generator.integers(0, len(content), 40).tolist() + [len(content) - n for n in (1, 9)]
    cuts = [content[:place] for place in (0, 1, 15, 16, 17, *places)]
    flips = [content[:n] + bytes([content[n] ^ 16]) + content[n + 1 :] for n in places]
    # A note in the place of the library: all that is left is its end.
    for each in [*cuts, *flips, content[-16:], content[-15:] * 2, b"\xff" * 8 + content[-8:]]:
        changed.write_bytes(each)
        with pytest.raises(FewtuneError):
            require_runnable(changed)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.so"):
        with pytest.raises(InputError, match="cannot be read"):
            read_note(path)


def test_a_foreign_librarys_constructor_does_not_run(tmp_path):
    code, ran = tmp_path / "foreign.c", tmp_path / "ran"
    code.write_text(
        "#include <fcntl.h>\n__attribute__((constructor)) static void run(void) "
        f'{{ open("{ran}", O_CREAT, 0600); }}\n'
    )
    foreign = tmp_path / "foreign.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(code), "-o", str(foreign)], check=True)
    with pytest.raises(InputError, match="no library of fewtune"):
        require_runnable(foreign)
    assert not ran.exists()


def test_a_library_of_another_machine_is_named_as_such(library, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sealed_library, "usable_cores", lambda: 0)
        with pytest.raises(MachineError, match="threads, and this process may use 0 cores"):
            require_runnable(library)
    with monkeypatch.context() as patch:
        patch.setattr(sealed_library.platform, "machine", lambda: "riscv64")
        with pytest.raises(MachineError, match="and this machine is riscv64"):
            require_runnable(library)
    with monkeypatch.context() as patch:
        patch.setattr(tvm, "__version__", "0.1")
        with pytest.raises(InputError, match=r"made by TVM .*, and this is 0\.1"):
            require_runnable(library)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fpu\n")
    monkeypatch.setattr(host_features, "CPUINFO", cpuinfo)
    with pytest.raises(MachineError, match="made for a CPU with avx2?, "):
        require_runnable(library)
