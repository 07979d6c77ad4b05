"""Targets that a user names: wrong ones are refused, and those that cannot run on this CPU."""

import json

import pytest

from fewtune.deploy import note
from fewtune.errors import InputError, MachineError
from fewtune.runtime.target import resolve_target


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"mcpu": "nonsense"}, "LLVM knows no CPU 'nonsense' of x86_64"),
        ({"host": {"kind": "llvm", "mcpu": "nonsense"}}, "LLVM knows no CPU 'nonsense'"),
        ({"mcpu": "znver4", "mtriple": "aarch64-linux-gnu"}, "no CPU 'znver4' of aarch64"),
        ({"mattr": ["+avx2", "+nonsense"]}, "LLVM knows no extension '\\+nonsense'"),
        ({"mattr": ["avx2"]}, "LLVM knows no extension 'avx2'"),
        ({"num-cores": -3}, "has -3 cores: give at least 1"),
        ({"mcpu": 3}, "is not one that TVM knows"),
    ],
)
def test_what_llvm_does_not_know_is_refused(wrong, complaint, capfd):
    with pytest.raises(InputError, match=complaint):
        resolve_target(json.dumps({"kind": "llvm", "mtriple": "x86_64-linux-gnu", **wrong}), 1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["nonsense", '{"kind":', '{"a":' * 5000, "[1]"])
def test_what_is_no_target_is_refused(text):
    with pytest.raises(InputError):
        resolve_target(text, 1)


def test_a_target_that_this_cpu_cannot_run_is_refused(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx avx2 fma f16c\n")
    monkeypatch.setattr(note, "CPUINFO", cpuinfo)
    target = json.dumps({"kind": "llvm", "mcpu": "skylake-avx512"})
    with pytest.raises(MachineError, match="needs avx512f, .* which this machine's CPU lacks"):
        resolve_target(target, 1)
    assert resolve_target(target, 1, elsewhere=True)
    assert resolve_target("auto", 1)
