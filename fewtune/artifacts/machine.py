"""The machine, and the conditions of measurements."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from fewtune.artifacts.base import Artifact, Part


class Fingerprint(Artifact):
    """The conditions of a measurement besides the parameters: machine and versions."""

    file_name = "fingerprint.json"

    device: str = Field(description="CPU or GPU model the kernels run on")
    logical_cores: int
    memory_gib: int
    system: str
    target: str = Field(description="the resolved TVM target, as JSON")
    threads: int = Field(description="threads that TVM and onnxruntime both get")
    versions: dict[str, str] = Field(description="python, tvm, tvm_ffi, llvm, onnxruntime, ...")
    at: str = Field(
        default="", description="where the device is reached; empty: on this machine, by itself"
    )
    cross_compiler: str = Field(default="", description="what links for it, if named")

    def identity(self) -> str:
        """A digest of all fields but the address: twelve hex digits."""
        device = self.model_dump(mode="json", exclude={"at", "cross_compiler"})
        text = json.dumps(device, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def prepares_caches(self) -> bool:
        """Whether caches are prepared before a call: not on a GPU, and not on a board."""
        return json.loads(self.target)["kind"] == "llvm" and not self.is_board

    @property
    def is_board(self) -> bool:
        """Whether it is a board behind TVM's RPC."""
        return self.at.startswith("rpc://")

    @property
    def is_fleet(self) -> bool:
        """Whether it is a fleet: a Dask cluster measures."""
        return self.at.startswith(("tcp://", "tls://", "local:"))

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields with default values, as in files of earlier versions."""
        values = dump(self)
        for name in ("at", "cross_compiler"):
            if not values.get(name):
                values.pop(name, None)
        return values


class LogInfo(Artifact):
    """The conditions of a tuning log's times."""

    file_name = "log.json"

    machine: str = Field(description="CPU or GPU model")
    target: str = Field(description="the resolved TVM target, as JSON")
    threads: int
    tvm: str = Field(description="version of apache-tvm")
    measuring: int = Field(
        default=1,
        description="which way of measuring its times are of (`fewtune.timing.cache_state`)",
    )
    predicted: bool = Field(
        default=False, description="whether its schedules were predicted, their times made up"
    )
    checked: bool = Field(
        default=False,
        description="whether its fastest schedules' outputs were compared with what tasks compute",
    )
    sha256: str = Field(default="", description="of the two database files, if it was noted")


class Conditions(Part):
    """The conditions of a table's figures."""

    fingerprint: Fingerprint
    date: str = Field(description="UTC, ISO 8601, to the minute")
    commit: str | None = Field(
        default=None, description="of the code that measured; + where it had been changed"
    )
    trials_per_task: int
    rounds: int
    copies: int = Field(default=1, description="of each variant, which took turns by rounds")
    processes: int = Field(default=1, description="one after the other, that shared the rounds")
    seed: int
    peers: dict[str, str] = Field(
        default={}, description="versions of the optional peers that were measured, too"
    )
