"""Libraries that are cut off, damaged, foreign or made for another machine are never mapped."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import asdict

import numpy as np
import pytest

from fewtune.deploy import note as notes
from fewtune.deploy.note import read_note, renew, require_runnable
from fewtune.errors import FewtuneError, InputError, MachineError
from fewtune.util.files import file_sha256
from tests.made import libraries


@pytest.fixture
def library(tmp_path):
    return libraries.library(tmp_path / "model.so")


def test_a_library_says_what_it_is(library):
    told = require_runnable(library)
    assert told == libraries.note(sha256=file_sha256(libraries.bare()))
    renew(library, libraries.note(sha256=told.sha256, model="other"))
    assert read_note(library).model == "other"


def test_whatever_is_changed_is_refused(library, tmp_path):
    content, changed = library.read_bytes(), tmp_path / "changed.so"
    generator = np.random.default_rng(0)
    end = notes.END.size
    places = generator.integers(0, len(content), 20).tolist()
    places += (len(content) - generator.integers(1, 600, 40)).tolist()
    cuts = [content[:place] for place in (0, 1, 7, 8, end - 1, end, end + 1, *places)]
    flips = [content[:n] + bytes([content[n] ^ 16]) + content[n + 1 :] for n in places]
    # A note in the place of the library: all that is left is its end.
    rests = [content[-end:], content[-8:], content[1 - end :] * 2, b"\xff" * 40 + content[-8:]]
    for each in [*cuts, *flips, *rests]:
        changed.write_bytes(each)
        with pytest.raises(FewtuneError):
            require_runnable(changed)


def test_a_field_of_a_later_version_is_left_alone(tmp_path):
    path = tmp_path / "model.so"
    told = libraries.note(sha256=file_sha256(libraries.bare()))
    text = json.dumps(asdict(told) | {"later": 1}).encode()
    end = notes.END.pack(hashlib.sha256(text).digest(), len(text), b"fewtune2")
    path.write_bytes(libraries.bare().read_bytes() + text + end)
    assert read_note(path) == told


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


def test_a_library_of_another_machine_is_named_as_such(tmp_path, monkeypatch):
    other = libraries.library(tmp_path / "riscv.so", architecture="riscv64")
    with pytest.raises(MachineError, match="made for riscv64, and this machine is"):
        require_runnable(other)
    other = libraries.library(tmp_path / "gpu.so", target='{"kind": "cuda"}')
    with pytest.raises(InputError, match="made for a GPU"):
        require_runnable(other)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fpu\n")
    monkeypatch.setattr(notes, "CPUINFO", cpuinfo)
    other = libraries.library(tmp_path / "avx.so", extensions=("fpu", "avx2", "fma"))
    with pytest.raises(MachineError, match="made for a CPU with avx2, fma, which this one lacks"):
        require_runnable(other)
