"""Malformed models through what ``fewtune check`` calls: a sentence and a documented code, always.

Files are made from one small network: cut short, bits flipped, of wrong types, with cycles, sizes
of zero or far too large, external data outside of their folder, and so on. A run is good where the
command ends by itself within its limit, with a code that its help lists, without a traceback, and
where it refuses with one line of reason. Prints a line a model; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, TensorProto

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.forked import in_fork
from benchmarks.helpers.malformed_graphs import graph_cases, value_cases
from benchmarks.helpers.malformed_network import Case, edited, network, weight
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint


def _bytes(content: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.onnx"
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


CODES = frozenset({0, 2, 3, 4})
LIMIT_S = 240


class Result(NamedTuple):
    """What came of one case; ``fault`` is empty where all is as it should be."""

    name: str
    code: int
    seconds: float
    said: str
    fault: str


def cases() -> list[Case]:
    """Every malformed model."""
    return [*file_cases(), *graph_cases(), *value_cases(), *data_cases()]


def judged(case: Case, code: int, output: str, errors: str, seconds: float = 0.0) -> Result:
    """Judge how the command ended on a case."""
    fault, reason = "", ""
    try:
        report = json.loads(output)
        reason = report["reason"] or ""
    except (ValueError, KeyError, TypeError):
        report = None
    if code < 0:
        fault = f"ended by signal {-code}"
    elif code not in CODES:
        fault = f"ended with {code}, which is not documented"
    elif "Traceback" in errors or "Traceback" in output:
        fault = "printed a traceback"
    elif report is None:
        fault = "printed no JSON"
    elif report["ok"] != (code == 0):
        fault = f"ended with {code}, but says ok: {report['ok']}"
    elif code == 0 and not case.may_pass:
        fault = "was accepted"
    elif code != 0 and (not reason.strip() or "\n" in reason):
        fault = "gave no reason of one line"
    said = reason or errors.strip().splitlines()[-1:] or ""
    return Result(case.name, code, round(seconds, 1), str(said)[:300], fault)


def check_case(case: Case) -> Result:
    """Put one case through what `fewtune check` calls, in a fork of this process."""
    from fewtune.model_check.check import check_here
    from fewtune.model_check.report import CheckJob

    with tempfile.TemporaryDirectory(prefix="malformed-") as scratch:
        path, said = case.write(Path(scratch)), Path(scratch) / "report.json"

        def check() -> int:
            report = check_here(CheckJob(model=path))
            said.write_text(json.dumps(report))
            return int(report["exit_code"])

        ended = in_fork(check, LIMIT_S)
        output = said.read_text() if said.is_file() else ""
        code = -signal.SIGKILL if ended.code is None else ended.code
        return judged(case, code, output, ended.text, ended.seconds)


def main() -> None:
    """Check all, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", nargs="+", help="only these")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if case.name in (arguments.case or [case.name])]
    # What every case needs is loaded before the forks.
    detect_fingerprint(FingerprintOptions())
    faults = 0
    for result in map(check_case, chosen):
        faults += bool(result.fault)
        verdict = f"FAULT: {result.fault}" if result.fault else f"code {result.code}"
        print(f"{result.name:22} {verdict:12} {result.seconds:5.1f} s  {result.said}", flush=True)
    print(json.dumps({"models": len(chosen), "faults": faults}))


if __name__ == "__main__":
    main()
