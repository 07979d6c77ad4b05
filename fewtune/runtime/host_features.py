"""The extensions of this machine's CPU that differ from those of LLVM's name for it.

LLVM names a CPU by its model number. A virtual machine may show another model's number (LLVM takes
a Xeon with AVX-512 BF16 for a Rocket Lake), or hide instructions of the model: code that uses these
would end in an illegal instruction. The kernel lists what can run.
"""

from __future__ import annotations

from fewtune.deploy.note import cpu_flags
from fewtune.runtime.tvm import has_feature, tvm

# By the key of the kernel's list: LLVM's name of an extension, and the kernel's.
_EXTENSIONS = {
    "flags": {
        "avx": "avx",
        "avx2": "avx2",
        "fma": "fma",
        "f16c": "f16c",
        "avxvnni": "avx_vnni",
        "avx512f": "avx512f",
        "avx512bw": "avx512bw",
        "avx512cd": "avx512cd",
        "avx512dq": "avx512dq",
        "avx512vl": "avx512vl",
        "avx512ifma": "avx512ifma",
        "avx512vbmi": "avx512vbmi",
        "avx512vbmi2": "avx512_vbmi2",
        "avx512bitalg": "avx512_bitalg",
        "avx512vpopcntdq": "avx512_vpopcntdq",
        "avx512vnni": "avx512_vnni",
        "avx512bf16": "avx512_bf16",
        "avx512fp16": "avx512_fp16",
    },
    "Features": {"dotprod": "asimddp", "fullfp16": "asimdhp", "i8mm": "i8mm", "bf16": "bf16"},
}


def unlike_its_name(mcpu: str, cpuinfo: str | None = None) -> list[str]:
    """The extensions that this machine's CPU has beyond its name, or lacks.

    Parameters
    ----------
    mcpu : str
        What LLVM takes the CPU for.
    cpuinfo : str, optional
        What the kernel says of the CPU; asked unless given.

    Returns
    -------
    mattr : list of str
        As a target's ``mattr`` takes them, such as ``+avx512bf16``; none where the kernel says
        nothing.
    """
    named = tvm.target.Target({"kind": "llvm", "mcpu": mcpu})
    for key, there in cpu_flags(cpuinfo).items():
        return [
            f"{'+' if flag in there else '-'}{name}"
            for name, flag in _EXTENSIONS[key].items()
            if (flag in there) != has_feature(named, name)
        ]
    return []


def needed_extensions(target: tvm.target.Target) -> list[str]:
    """The extensions that a CPU target's code may use, as the kernel names them."""
    return [
        flag
        for extensions in _EXTENSIONS.values()
        for name, flag in extensions.items()
        if has_feature(target, name)
    ]
