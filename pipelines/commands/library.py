"""`fewtune info`: what a library says of itself."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fewtune.deploy.note import Note, Tensor, lacking_here, read_note
from fewtune.pipelines.commands.show import tell


def info(options: argparse.Namespace) -> int:
    """Print a library's note."""
    note = read_note(Path(options.library))
    if options.json:
        tell(json.dumps(asdict(note)))
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
    for name, text in note.conditions.items():
        yield name, text


def _described(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype} {list(tensor.shape)}"
