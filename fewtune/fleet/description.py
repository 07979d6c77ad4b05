"""The description of a fleet's machine, with what must be equal for times to be comparable."""

from __future__ import annotations

import socket
from typing import Any

import fewtune
from fewtune.machine.cache_sizes import last_level_cache_bytes, own_caches_bytes
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint


def describe(options: dict[str, Any]) -> dict[str, Any]:
    """The description of this machine: its fingerprint, its class, and its host.

    Parameters
    ----------
    options : dict
        Of `FingerprintOptions`.
    """
    own = detect_fingerprint(FingerprintOptions.model_validate({**options, "device": "here"}))
    return {
        "fingerprint": own.model_dump(mode="json"),
        "class": {
            "CPU": own.device,
            "target": own.target,
            "threads": own.threads,
            "system": own.system,
            "caches": [own_caches_bytes(own.threads), last_level_cache_bytes()],
            "TVM": own.versions["apache-tvm"],
            "fewtune": fewtune.__version__,
        },
        "host": socket.gethostname(),
    }
