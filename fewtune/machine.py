"""The machine a figure was measured on: its fingerprint, target and threads."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError

_VERSIONED = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "xgboost", "numpy")


class FingerprintOptions(BaseModel):
    """Which target to compile for, and how many threads run."""

    model_config = ConfigDict(extra="forbid")

    target: str = Field(
        default="auto", description="auto (this CPU), a kind (cuda), or a TVM target as JSON"
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="auto (all usable cores) or a number"
    )

    def thread_count(self) -> int:
        """The number of threads, at least 1.

        Raises
        ------
        InputError
            If ``threads`` is more than the usable cores.
        """
        cores = len(os.sched_getaffinity(0))
        if self.threads == "auto":
            return cores
        if self.threads <= cores:
            return self.threads
        raise InputError(f"threads is {self.threads}, but only {cores} cores are usable")


def resolve_target(text: str, threads: int):  # noqa: ANN201 (tvm is imported late)
    """Turn the user's words into a complete TVM target.

    Parameters
    ----------
    text : str
        ``auto`` for this CPU, a target kind such as ``cuda`` or ``llvm``, or a target as JSON.
    threads : int
        Cores that a CPU kernel may use; MetaSchedule sizes its parallel loops by it.

    Returns
    -------
    target : tvm.target.Target

    Raises
    ------
    InputError
        If TVM does not know the target.
    MachineError
        If the target's device is not on this machine.
    """
    from fewtune.tvm_runtime import register_intrinsics, tvm

    host_cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    host = {"kind": "llvm", "mcpu": host_cpu, "num-cores": threads}
    text = text.strip()
    if text in ("auto", "llvm", "cpu"):
        config: dict | str = host
    elif text.startswith("{"):
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"target {text!r} is no JSON: {error.msg}") from None
        if isinstance(config, dict) and config.get("kind") == "llvm":
            config = {**host, **config}
    else:
        config = {"kind": text}
    try:
        if config == {"kind": "cuda"} and tvm.cuda(0).exist:
            target = tvm.target.Target.from_device(tvm.cuda(0))
        else:
            target = tvm.target.Target(config)
    except Exception as error:  # noqa: BLE001 (TVM raises several kinds for a bad target)
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else "unknown"
        raise InputError(
            f"target {text!r} is not one that TVM knows ({reason}); give auto, llvm, cuda or JSON"
        ) from None
    device = device_of(target)
    if not device.exist:
        raise MachineError(
            f"target {text!r} needs a {target.kind.name} device and this machine has none; "
            "set fingerprint.target to auto to tune for its CPU"
        )
    register_intrinsics(target)
    return target


def device_of(target):  # noqa: ANN001, ANN201
    """The first device that runs code of ``target``."""
    from fewtune.tvm_runtime import tvm

    kind = str(target.kind.name)
    return tvm.device("cpu" if kind in ("llvm", "c") else kind, 0)


def has_own_device(target) -> bool:  # noqa: ANN001
    """Whether kernels run elsewhere than on the cores that build them."""
    return str(target.kind.name) != "llvm"


def target_from_json(text: str):  # noqa: ANN201
    """Make the TVM target that a fingerprint holds."""
    from fewtune.tvm_runtime import register_intrinsics, tvm

    target = tvm.target.Target(json.loads(text))
    register_intrinsics(target)
    return target


def target_json(target) -> str:  # noqa: ANN001
    """The target as JSON with sorted keys."""
    return json.dumps(json.loads(str(target)), sort_keys=True)


def cpu_name() -> str:
    """The processor's model name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def require_compiler() -> None:
    """Check that there is a compiler to link libraries with, before hours are spent on tuning.

    Raises
    ------
    MachineError
        If there is none on the PATH.
    """
    if not any(shutil.which(name) for name in ("cc", "gcc", "g++", "clang")):
        raise MachineError(
            "no C compiler (cc, gcc, g++ or clang) is on the PATH, and linking the tuned library "
            "needs one: install gcc"
        )


def detect_fingerprint(options: FingerprintOptions) -> Fingerprint:
    """Look at this machine.

    Raises
    ------
    InputError, MachineError
        As `resolve_target`, `FingerprintOptions.thread_count` and `require_compiler`.
    """
    require_compiler()
    from fewtune.tvm_runtime import tvm

    threads = options.thread_count()
    target = resolve_target(options.target, threads)
    device = device_of(target)
    name = cpu_name() if target.kind.name == "llvm" else f"{device.device_name} ({cpu_name()})"
    versions = {package: importlib.metadata.version(package) for package in _VERSIONED}
    versions["python"] = platform.python_version()
    versions["llvm"] = str(tvm.get_global_func("target.llvm_version_major")())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Fingerprint(
        device=name,
        logical_cores=os.cpu_count() or 1,
        memory_gib=round(pages / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        target=target_json(target),
        threads=threads,
        versions=versions,
    )
