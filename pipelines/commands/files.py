"""What `fewtune info`, `bundle`, `log` and `bank` do with files: libraries, tuning logs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fewtune.deploy.bundle import LIBRARY, measured_note
from fewtune.deploy.bundle import bundle as write_bundle
from fewtune.deploy.note import Note, Tensor, lacking_here
from fewtune.errors import InputError
from fewtune.model.registration import RESERVED_NAMES, check_name
from fewtune.pipelines.checkout.project import find_root
from fewtune.pipelines.commands.show import show_json, shown, tell
from fewtune.stages.paths import Places
from fewtune.util.files import whole_directory


def info(options: argparse.Namespace) -> int:
    """Print a library's note."""
    note = measured_note(Path(options.library))
    if options.json:
        show_json(asdict(note))
        return 0
    for name, value in _lines(note):
        tell(f"{name:<10} {value}")
    return 0


def _lines(note: Note) -> Iterator[tuple[str, str]]:
    yield "model", f"{note.model} (ONNX file {note.model_sha256[:12]})"
    for function in note.functions:
        if len(note.functions) > 1:
            yield "function", function.name
        for name, tensors in (("input", function.inputs), ("output", function.outputs)):
            for tensor in tensors:
                yield name, _described(tensor)
    for name, (lowest, highest) in note.limits.items():
        yield "limits", f"{name} from {lowest} to {highest}, as an index"
    yield "machine", f"{note.architecture}, {note.threads} threads, {note.target}"
    yield "needs", ", ".join(note.extensions) or "no extension of the CPU"
    if lacking := lacking_here(note.extensions):
        yield "lacking", f"{', '.join(lacking)}: it does not run here"
    yield "made by", ", ".join(f"{name} {version}" for name, version in note.versions.items())
    accuracy = (f"{name} {value:.3g}" for name, value in note.verified.items())
    yield "verified", f"beside onnxruntime: {', '.join(accuracy)}"
    for name, value in note.latencies_ms.items():
        yield "latency", f"{name} {value:.3g} ms"
    yield from note.conditions.items()


def _described(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype} {list(tensor.shape)}"


def bundle(options: argparse.Namespace) -> int:
    """Write a bundle of a result's library, or of a library."""
    library = Path(options.model)
    if library.suffix != Path(LIBRARY).suffix:
        library = Places(find_root()).compiled(options.model, options.strategy) / LIBRARY
        if not library.is_file():
            raise InputError(
                f"{shown(library)} is missing: make it with `fewtune run {options.model} "
                f"--strategy {options.strategy}`"
            )
    name = Path(options.model).name.removesuffix(Path(LIBRARY).suffix)
    written = write_bundle(library, options.to or f"{name}-bundle")
    tell(f"wrote {shown(written)}")
    return 0


def log(options: argparse.Namespace) -> int:
    """Merge or distil tuning logs."""
    output = Path(options.output)
    if output.exists():
        raise InputError(f"{output} is there already: give another --output, or remove it")
    from fewtune.storage.database import merge

    with whole_directory(output) as directory:
        kept = merge([Path(path) for path in options.logs], directory, options.best)
    tell(f"{output}: {sum(kept.values())} records of {len(kept)} workloads")
    return 0


def bank(options: argparse.Namespace) -> int:
    """Write or read a bank's file."""
    from fewtune.bank.exchange import export_bank, import_bank
    from fewtune.machine.fingerprint import detect_fingerprint
    from fewtune.stages.params import load_section

    root, file = find_root(), Path(options.file)
    places = Places(root)
    fingerprint = detect_fingerprint(load_section("fingerprint", path=places.params))
    if options.action == "export":
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
