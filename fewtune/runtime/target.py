"""Targets: what a user names, made complete, and as JSON.

LLVM names a CPU by its model number. A virtual machine may show another model's number (LLVM takes
a Xeon with AVX-512 BF16 for a Rocket Lake), or hide instructions of the model: code that uses these
would end in an illegal instruction. The kernel lists what can run.
"""

from __future__ import annotations

import json
import platform
from typing import Any

from fewtune.deploy.note import cpu_flags, lacking_here
from fewtune.errors import InputError, MachineError, last_line
from fewtune.runtime.tvm import HOST_KINDS, has_feature, load_backends, register_intrinsics, tvm
from fewtune.tvm_compat.noise import without_noise
from fewtune.util.asked import asked

# What TVM's schedule rules have to know of a GPU: of every architecture from sm_70 on, at least.
GPU_LIMITS = {
    "max_shared_memory_per_block": 49152,
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
}
_X86 = (
    "avx avx2 fma f16c avx_vnni avx512f avx512bw avx512cd avx512dq avx512vl avx512ifma avx512vbmi "
    "avx512_vbmi2 avx512_bitalg avx512_vpopcntdq avx512_vnni avx512_bf16 avx512_fp16"
)
# By the key of the kernel's list: LLVM's name of an extension, and the kernel's.
_EXTENSIONS = {
    "flags": {flag.replace("_", ""): flag for flag in _X86.split()},
    "Features": {"dotprod": "asimddp", "fullfp16": "asimdhp", "i8mm": "i8mm", "bf16": "bf16"},
}


def resolve_target(text: str, threads: int, *, elsewhere: bool = False) -> tvm.target.Target:
    """Turn the user's words into a complete TVM target.

    Parameters
    ----------
    text : str
        ``auto`` for this CPU, a target kind such as ``cuda`` or ``llvm``, or a target as JSON.
    threads : int
        Cores that a CPU kernel may use; MetaSchedule sizes its parallel loops by it.
    elsewhere : bool
        The code runs on another machine: nothing about it is taken from this one.

    Returns
    -------
    target : tvm.target.Target

    Raises
    ------
    InputError
        If TVM does not know the target.
    MachineError
        If the target's device is not on this machine, or its architecture is another one.
    """
    text = text.strip()
    config = _config(text, threads, elsewhere)
    _load_for(config)
    try:
        if config == {"kind": "cuda"} and tvm.cuda(0).exist:
            config = {**GPU_LIMITS, **json.loads(str(tvm.target.Target.from_device(tvm.cuda(0))))}
        target = tvm.target.Target(config)
    except Exception as error:  # noqa: BLE001 (TVM raises several kinds for a bad target)
        raise InputError(
            f"target {text!r} is not one that TVM knows ({last_line(error)}); give auto, llvm, "
            "cuda or JSON"
        ) from None
    if not elsewhere:
        _require_here(text, target)
    register_intrinsics(target)
    return target


def _config(text: str, threads: int, elsewhere: bool) -> Any:
    """The target as TVM takes it; what is not said of a CPU is as on this machine."""
    host: dict[str, Any] = {"kind": "llvm", "num-cores": threads}
    if not elsewhere:
        host["mcpu"] = tvm.get_global_func("target.llvm_get_system_cpu")()
        if unlike := unlike_its_name(host["mcpu"]):
            host["mattr"] = unlike
    if text in ("auto", "llvm", "cpu"):
        return host
    if not text.startswith("{"):
        return {"kind": text}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"target {text!r} is no JSON: {error.msg}") from None
    except RecursionError:
        raise InputError("the target is JSON nested too deeply") from None
    if not isinstance(config, dict):
        return config
    for part in (config, config.get("host")):
        if isinstance(part, dict) and part.get("kind") == "llvm":
            _require_known(text, part)
    if config.get("kind") != "llvm":
        return config
    if "mcpu" in config:
        host.pop("mattr", None)
    return {**host, **config}


def _require_here(text: str, target: tvm.target.Target) -> None:
    """Raise `MachineError` where this machine cannot run code of a target."""
    if is_foreign(target):
        board = asked("device", value="rpc://HOST:9190/KEY")
        raise MachineError(
            f"target {text!r} is of {architecture(target)} and this machine is "
            f"{platform.machine()}: name the board to measure on with {board}"
        )
    if not has_own_device(target) and (lacking := lacking_here(needed_extensions(target))):
        raise MachineError(
            f"target {text!r} needs {', '.join(lacking)}, which this machine's CPU lacks: give auto"
        )
    if not tvm_device(target).exist:
        raise MachineError(
            f"target {text!r} needs a {target.kind.name} device and this machine has none; "
            "set fingerprint.target to auto to tune for its CPU"
        )


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


def _require_known(text: str, config: dict[str, Any]) -> None:
    """Refuse a CPU or an extension that LLVM does not know: it would go on, and only warn."""
    cpu, attributes, cores = (config.get(key) for key in ("mcpu", "mattr", "num-cores"))
    triple = config.get("mtriple") or tvm.get_global_func("target.llvm_get_system_triple")()
    if isinstance(cores, int) and cores < 1:
        raise InputError(f"target {text!r} has {cores} cores: give at least 1")
    # TVM itself refuses other types.
    if not isinstance(triple, str):
        return
    if isinstance(cpu, str) and not tvm.get_global_func("target.llvm_is_valid_cpu")(cpu, triple):
        raise InputError(
            f"target {text!r}: LLVM knows no CPU {cpu!r} of {triple}; give auto for this CPU"
        )
    if isinstance(attributes, list) and all(isinstance(each, str) for each in attributes):
        names = [each[1:] for each in attributes]
        every = {"kind": "llvm", "mtriple": triple, "mattr": [f"+{name}" for name in names]}
        with without_noise():
            known = tvm.get_global_func("target.llvm_get_cpu_features")(tvm.target.Target(every))
        for each, name in zip(attributes, names, strict=True):
            if name not in known or each[0] not in "+-":
                raise InputError(
                    f"target {text!r}: LLVM knows no extension {each!r} of {triple}; give a sign "
                    "and a name, as +avx2"
                )


def _load_for(config: object) -> None:
    """Load what TVM has for other devices, unless a target is a CPU."""
    if not isinstance(config, dict) or config.get("kind") not in HOST_KINDS:
        load_backends()


def tvm_device(target: tvm.target.Target) -> tvm.runtime.Device:
    """The first device that runs code of ``target``."""
    kind = str(target.kind.name)
    return tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)


def has_own_device(target: tvm.target.Target) -> bool:
    """Whether kernels run elsewhere than on the cores that build them."""
    return str(target.kind.name) != "llvm"


def architecture(target: tvm.target.Target) -> str:
    """A CPU target's architecture as ``uname -m`` names it; without a triple, this machine's."""
    first = str(target.attrs.get("mtriple", "") or "").split("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(first, first) or platform.machine()


def is_foreign(target: tvm.target.Target) -> bool:
    """Whether a CPU target's code cannot run on this machine, being of another architecture."""
    return not has_own_device(target) and architecture(target) != platform.machine()


def host_target(threads: int) -> tvm.target.Target:
    """The CPU of this machine as a complete target."""
    return resolve_target("auto", threads)


def target_from_json(text: str) -> tvm.target.Target:
    """Make the TVM target that a fingerprint holds."""
    try:
        config = json.loads(text)
        _load_for(config)
        target = tvm.target.Target(config)
    except Exception as fault:  # noqa: BLE001 (TVM raises several kinds for a bad target)
        raise InputError(
            f"the noted target is damaged ({last_line(fault)}): note it again"
        ) from None
    register_intrinsics(target)
    return target


def target_json(target: tvm.target.Target) -> str:
    """The target as JSON with sorted keys."""
    return json.dumps(json.loads(str(target)), sort_keys=True)
