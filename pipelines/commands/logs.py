"""What `fewtune log` and `bank` do."""

from __future__ import annotations

import argparse
from pathlib import Path

from fewtune.errors import InputError
from fewtune.model.registration import RESERVED_NAMES, check_name
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import shown, tell
from fewtune.stages.paths import Places


def log(options: argparse.Namespace) -> int:
    """Merge or distil tuning logs."""
    output = Path(options.output)
    if options.best is not None and options.best < 1:
        raise InputError(f"--best {options.best}: give a number from 1 on")
    if output.exists():
        raise InputError(f"{output} is there already: give another --output, or remove it")
    from fewtune.storage.log_archive import merge
    from fewtune.util.files import whole_directory

    with whole_directory(output) as directory:
        kept = merge([Path(path) for path in options.logs], directory, options.best)
    tell(f"{output}: {sum(kept.values())} records of {len(kept)} workloads")
    return 0


def bank(options: argparse.Namespace) -> int:
    """Write or read a bank's file."""
    from fewtune.bank.exchange import export_bank, import_bank
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.stages.params import load_section
    from fewtune.util.files import whole_directory

    root, file = find_root(), Path(options.file)
    places = Places(root)
    fingerprint = detect_fingerprint(load_section("fingerprint", path=places.params))
    if options.action == "export":
        if options.best < 1:
            raise InputError(f"--best {options.best}: give a number from 1 on")
        manifest = export_bank(
            root / options.logs, file, fingerprint, licence=options.licence, best=options.best
        )
        tell(f"{file}: {manifest.schedules} schedules of {manifest.workloads} workloads")
        return 0
    name = options.name or file.stem
    if name not in RESERVED_NAMES:  # of folders below out/
        check_name(name)
    folder = places.banked_logs / name
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{shown(folder)} is there already: give another --name, or remove it")
    with whole_directory(folder) as scratch:
        manifest = import_bank(file, fingerprint, scratch)
    tell(f"{shown(folder)}: {manifest.schedules} schedules of {manifest.workloads} workloads")
    tell(f"licence: {manifest.licence}")
    tell("use it with: fewtune run MODEL --set build_bank.selective.logs=bank")
    return 0
