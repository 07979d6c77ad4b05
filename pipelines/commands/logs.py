"""What `fewtune log`, `bank` and `predictor` do: logs, banks and predictors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fewtune.errors import InputError
from fewtune.model.registration import check_name
from pipelines.checkout.project import find_root
from pipelines.commands.show import shown
from stages.paths import Places


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
    print(f"{output}: {sum(kept.values())} records of {len(kept)} workloads")
    return 0


def bank(options: argparse.Namespace) -> int:
    """Write or read a bank's file."""
    from fewtune.bank.exchange import export_bank, import_bank
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.util.files import whole_directory
    from stages.params import load_section

    root, file = find_root(), Path(options.file)
    places = Places(root)
    fingerprint = detect_fingerprint(load_section("fingerprint", path=places.params))
    if options.action == "export":
        if options.best < 1:
            raise InputError(f"--best {options.best}: give a number from 1 on")
        manifest = export_bank(
            root / options.logs, file, fingerprint, licence=options.licence, best=options.best
        )
        print(f"{file}: {manifest.schedules} schedules of {manifest.workloads} workloads")
        return 0
    name = options.name or file.stem
    check_name(name)
    folder = places.banked_logs / name
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{shown(folder)} is there already: give another --name, or remove it")
    with whole_directory(folder) as scratch:
        manifest = import_bank(file, fingerprint, scratch)
    print(f"{shown(folder)}: {manifest.schedules} schedules of {manifest.workloads} workloads")
    print(f"licence: {manifest.licence}")
    print("use it with: fewtune run MODEL --set build_bank.selective.logs=bank")
    return 0


def predictor(options: argparse.Namespace) -> int:
    """Train, list or describe predictors."""
    from fewtune.predictor.pretrained import read_conditions
    from pipelines.commands.predictor import (
        known_predictors,
        predictor_called,
        predictor_table,
        train,
    )

    if options.action == "train":
        train(
            options.models,
            options.hold_out,
            Path(options.output),
            given=[Path(file) for file in options.samples],
            kept=None if options.keep is None else Path(options.keep),
            most_trials=options.most_trials,
        )
        return 0
    try:
        places = Places(find_root())
    except InputError:
        places = Places()  # those that come with fewtune are known anywhere
    if options.action == "list":
        predictor_table(known_predictors(places)).print()
        return 0
    conditions = read_conditions(predictor_called(options.name, places))
    conditions.pop("features")
    print(json.dumps(conditions, indent=2, sort_keys=True))
    return 0
