"""The fingerprint of a board: its key, the target that the user gives, and its threads."""

from __future__ import annotations

import json
from typing import Any

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError
from fewtune.machine.fingerprint import FingerprintOptions, versions
from fewtune.machine.rpc_board import BoardAddress, ask_tracker, linker
from fewtune.runtime.target import architecture, resolve_target, target_json


def board_fingerprint(options: FingerprintOptions) -> Fingerprint:
    """Look for a board, and for a compiler that links code for it.

    Its class is its key and its target: boards of one key are taken to be alike.

    Raises
    ------
    InputError
        If the target is not given as JSON.
    MachineError
        If there is no board of the key, or no compiler links for it here.
    """
    address = BoardAddress.of(options.device)
    if not options.target.strip().startswith("{"):
        raise InputError(
            f"a board needs its target: give fingerprint.target (--target) as JSON, such as "
            f'\'{{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", '
            f'"num-cores": 4}}\', not {options.target!r}'
        )
    cores = int(_config(options.target).get("num-cores", 1))
    threads = cores if options.threads == "auto" else options.threads
    target = resolve_target(options.target, threads, elsewhere=True)
    linker(target, options.cross_compiler)
    ask_tracker(address)
    return Fingerprint(
        device=f"{address.key} (board behind TVM's RPC)",
        logical_cores=cores,
        memory_gib=0,
        system=f"RPC {architecture(target)}",
        target=target_json(target),
        threads=threads,
        versions=versions(),
        at=str(address),
        cross_compiler=options.cross_compiler,
    )


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        config = None
    return config if isinstance(config, dict) else {}
