"""The machine a figure was measured on: its fingerprint, target and threads."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError, MachineError
from fewtune.util.switches import switched_off

# By the beginning of an address, the class of its device (`fewtune.measure.device.Device`).
KINDS = {
    "rpc://": "fewtune.measure.board:Board",
    **dict.fromkeys(("tcp://", "tls://", "local:"), "fewtune.fleet.device:Fleet"),
}
_VERSIONED = ("apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime", "xgboost", "numpy")


class FingerprintOptions(BaseModel, extra="forbid"):
    """Which target to compile for, and how many threads run."""

    target: str = Field(
        default="auto", description="auto (this CPU), a kind (cuda), or a TVM target as JSON"
    )
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto", description="auto (all usable cores) or a number"
    )
    device: str = Field(
        default="here",
        description="where candidates are measured: here; a board behind a TVM tracker, "
        "rpc://HOST:9190/KEY; a fleet behind a Dask scheduler, tcp://HOST:8786; or local:2, two "
        "workers here",
    )
    cross_compiler: str = Field(
        default="", description="what links for a board of another architecture; found unless named"
    )

    def thread_count(self) -> int:
        """The number of threads, at least 1.

        Raises
        ------
        InputError
            If ``threads`` is more than the usable cores, or TVM_NUM_THREADS is invalid or another
            number.
        """
        # Imported here, as everywhere in this file: options are read without loading TVM.
        from fewtune.runtime.tvm import THREADS, given_threads

        cores = len(os.sched_getaffinity(0))
        given = given_threads()
        if given is not None and not (given.isdecimal() and 1 <= int(given) <= cores):
            raise InputError(
                f"{THREADS} is {given!r} in the environment: give a number from 1 to {cores}, the "
                "usable cores, or unset it"
            )
        usual = int(given) if given else cores
        wanted = usual if self.threads == "auto" else self.threads
        # TVM obeys the environment, not this option.
        if given is not None and usual != wanted:
            raise InputError(
                f"fingerprint.threads is {wanted}, but {THREADS} is {given} in the environment: "
                "unset one of them"
            )
        if wanted > cores:
            raise InputError(f"threads is {wanted}, but only {cores} cores are usable")
        return wanted


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
        As `resolve_target`, `FingerprintOptions.thread_count` and `require_compiler`; for a device
        elsewhere, as the function that describes it.
    """
    require_compiler()
    for prefix, place in KINDS.items():
        if options.device.startswith(prefix):
            return resolve_name(place).describe(options)
    if options.device != "here":
        raise InputError(
            f"fingerprint.device is {options.device!r}: give here, or {' or '.join(KINDS)}..."
        )
    from fewtune.runtime.target import resolve_target, target_json, tvm_device

    threads = options.thread_count()
    target = resolve_target(options.target, threads)
    device = tvm_device(target)
    name = cpu_name() if target.kind.name == "llvm" else f"{device.device_name} ({cpu_name()})"
    return Fingerprint(
        device=name,
        logical_cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        target=target_json(target),
        threads=threads,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of all software that affects measurements."""
    from fewtune.runtime.tvm import tvm

    found = {package: importlib.metadata.version(package) for package in _VERSIONED}
    found["python"] = platform.python_version()
    if switched_off():
        found["without"] = ", ".join(sorted(switched_off()))
    found["llvm"] = str(tvm.get_global_func("target.llvm_version_major")())
    return found
