"""The note of a library that was just compiled and verified."""

from __future__ import annotations

from pathlib import Path

import fewtune
from fewtune.artifacts import Fingerprint, ImportReport, TensorSpec
from fewtune.deploy.note import Function, Note, Paddable, Tensor, tail
from fewtune.runtime.target import architecture, needed_extensions, target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.util.files import file_sha256
from fewtune.verify.comparison import Difference


def seal(
    library: Path, model: str, fingerprint: Fingerprint, imported: ImportReport, found: Difference
) -> None:
    """Add the note to a library of a model, made for a machine, that was verified."""
    target = target_from_json(fingerprint.target)
    note = Note(
        sha256=file_sha256(library),
        model=model,
        model_sha256=imported.source_sha256,
        functions=tuple(
            Function(
                each.regime or each.function,
                each.function,
                _tensors(each.inputs),
                _tensors(each.outputs),
            )
            for each in imported.all_functions()
        ),
        paddable=tuple(Paddable(**each.model_dump()) for each in imported.paddable),
        limits=imported.limits,
        target=fingerprint.target,
        architecture=architecture(target),
        extensions=tuple(needed_extensions(target)),
        threads=fingerprint.threads,
        versions={
            "fewtune": fewtune.__version__,
            "tvm": tvm.__version__,
            "onnxruntime": fingerprint.versions.get("onnxruntime", "unknown"),
        },
        verified={
            "draws": found.draws,
            "allowances": found.allowances,
            "max_error": found.max_error,
            "max_relative_error": found.max_relative_error,
        },
    )
    with library.open("ab") as stream:
        stream.write(tail(note))


def _tensors(specs: list[TensorSpec]) -> tuple[Tensor, ...]:
    return tuple(Tensor(each.name, each.dtype, tuple(each.shape)) for each in specs)
