"""Malformed files: cut short, bits flipped, external data out of reach."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto

from benchmarks.helpers.malformed_network import Case, edited, network, weight

_FLOAT = TensorProto.FLOAT


def _bytes(content: Callable[[bytes], bytes], name: str = "model.onnx") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content(network().SerializeToString()))
        return path

    return write


def _flipped(content: bytes, seed: int, count: int) -> bytes:
    generator = np.random.default_rng(seed)
    flipped = bytearray(content)
    for place in generator.integers(0, len(flipped), count):
        flipped[place] ^= 1 << int(generator.integers(0, 8))
    return bytes(flipped)


def _external(location: str, **entries: str) -> Callable[[Path], Path]:
    """Weights that claim to lie in another file."""

    def edit(model: ModelProto) -> None:
        tensor = weight(model, "w")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=value)

    def write(folder: Path) -> Path:
        (folder / "weights.bin").write_bytes(bytes(8 * 3 * 3 * 3 * 4))
        (folder / "link.bin").symlink_to("/etc/hostname")
        (folder / "short.bin").write_bytes(b"short")
        (folder / "folder.bin").mkdir()
        os.mkfifo(folder / "pipe.bin")
        return edited(edit)(folder)

    return write


def file_cases() -> Iterator[Case]:
    """Files that are no model, or a damaged one."""
    yield Case("empty_file", _bytes(lambda _: b""))
    yield Case("one_byte", _bytes(lambda _: b"\x08"))
    yield Case("text", _bytes(lambda _: b"this is no model\n" * 20))
    yield Case("zeros", _bytes(lambda _: bytes(4096)))
    yield Case("pickle", _bytes(lambda _: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}."))
    yield Case("zip", _bytes(lambda _: b"PK\x03\x04" + bytes(100)))
    yield Case("twice", _bytes(lambda content: content * 2), may_pass=True)
    yield Case("tail_of_text", _bytes(lambda content: content + b"tail"))
    yield Case("text_model", _bytes(lambda _: b'ir_version: 9 graph { name: "g" }'))
    for share in (5, 25, 50, 75, 99):
        yield Case(
            f"cut_at_{share}",
            _bytes(lambda content, share=share: content[: len(content) * share // 100]),
        )
    for seed in range(8):
        yield Case(
            f"flipped_{seed}",
            _bytes(lambda content, seed=seed: _flipped(content, seed, 1 + 3 * seed)),
            may_pass=True,
        )
    yield Case("missing", lambda folder: folder / "missing.onnx")
    yield Case("a_folder", lambda folder: folder)
    yield Case("broken_link", _broken_link)
    yield Case("a_pipe", _pipe)


def _broken_link(folder: Path) -> Path:
    path = folder / "link.onnx"
    path.symlink_to(folder / "nowhere.onnx")
    return path


def _pipe(folder: Path) -> Path:
    path = folder / "pipe.onnx"
    os.mkfifo(path)
    return path


def data_cases() -> Iterator[Case]:
    """Models whose external data cannot be read."""
    yield Case("data_missing", _external("nowhere.bin"))
    yield Case("data_above", _external("../weights.bin"))
    yield Case("data_absolute", _external("/etc/hostname"))
    yield Case("data_link", _external("link.bin"))
    yield Case("data_folder", _external("folder.bin"))
    yield Case("data_pipe", _external("pipe.bin"))
    yield Case("data_short", _external("short.bin"))
    yield Case("data_nul", _external("weights.bin\0/etc/hostname"))
    yield Case("data_no_name", _external(""))
    yield Case("data_offset_negative", _external("weights.bin", offset="-8"))
    yield Case("data_offset_text", _external("weights.bin", offset="eight"))
    yield Case("data_length_huge", _external("weights.bin", length=str(2**60)))
