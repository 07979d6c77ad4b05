"""A bank as one file, to be copied to another machine of the same kind.

The file is a zip of four members of fixed names: a manifest, and a tuning log
(`fewtune.storage.database`) with the best schedules of each workload. Nothing in it is code.
Members are read by their fixed names and written to the reader's paths, so a path or link in the
file has no effect.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from fewtune.artifacts import Artifact, Fingerprint, LogInfo
from fewtune.errors import InputError, JournalError
from fewtune.storage.database import (
    RECORDS,
    WORKLOADS,
    difference_of,
    log_info,
    logs_below,
    merge,
    read_workloads,
)
from fewtune.util.files import canonical_json, write_bytes

_MANIFEST = "manifest.json"
_GIVE = "a file that `fewtune bank export` wrote"
_LOG = (LogInfo.file_name, WORKLOADS, RECORDS)
# No bank is larger; a larger file would fill the memory.
_MOST_BYTES = 512 * 2**20
# The members' date: equal banks are equal bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, RuntimeError)


class BankFile(Artifact):
    """The manifest of a bank's file."""

    file_name = _MANIFEST

    format: Literal["fewtune-bank"]
    schema_version: Literal[1]
    workloads: int
    schedules: int
    licence: str = Field(description="what the schedules may be used for, in their maker's words")
    holds_for: LogInfo = Field(description="machine, target, threads and TVM that it holds for")


def export_bank(
    logs: Path, file: Path, fingerprint: Fingerprint, *, licence: str, best: int = 8
) -> BankFile:
    """Write the best schedules of all logs below a folder into one file.

    Parameters
    ----------
    logs : Path
        Folder of tuning logs, as `build_bank.logs`.
    file : Path
        To be made.
    fingerprint : Fingerprint
        This machine: only its logs are exported.
    licence : str
        A note for the users who import it.
    best : int
        Schedules a workload.

    Raises
    ------
    InputError
        If there is no log, one is of another machine or predicted, or the file is there already.
    """
    if file.exists() or file.is_symlink():
        raise InputError(f"{file} is there already: give another name, or remove it")
    found = logs_below(logs, fingerprint, "exported") if logs.is_dir() else []
    if not found:
        raise InputError(f"{logs} holds no tuning log: `fewtune log` makes one there")
    with tempfile.TemporaryDirectory(prefix="fewtune-") as folder:
        scratch = Path(folder)
        kept = merge(found, scratch, best)
        manifest = BankFile(
            format="fewtune-bank",
            schema_version=1,
            workloads=len(kept),
            schedules=sum(kept.values()),
            licence=licence,
            holds_for=LogInfo.read(scratch),
        )
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            text = canonical_json(manifest.model_dump(mode="json")).encode()
            members = {_MANIFEST: text, **{n: (scratch / n).read_bytes() for n in _LOG}}
            for name, held in members.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), held, zipfile.ZIP_DEFLATED)
    write_bytes(file, content.getvalue())
    return manifest


def import_bank(file: Path, fingerprint: Fingerprint, directory: Path) -> BankFile:
    """Read such a file into a folder, as a tuning log that a bank can be built of.

    Parameters
    ----------
    file : Path
    fingerprint : Fingerprint
        Where it is to be used.
    directory : Path
        An existing, empty folder.

    Raises
    ------
    InputError
        If the file is no bank, is damaged, or holds for another machine, target, number of
        threads, TVM version or way of measuring.
    """
    manifest, members = _read(file)
    theirs = manifest.holds_for
    if difference := difference_of(log_info(fingerprint), theirs):
        raise InputError(f"{file} does not fit here: {difference}")
    if theirs.predicted:
        raise InputError(f"{file} holds predicted schedules, which nobody measured")
    theirs.write(directory)
    for name in (WORKLOADS, RECORDS):
        write_bytes(directory / name, members[name])
    try:
        read_workloads([directory])
    except JournalError as fault:
        raise InputError(f"{file} is damaged: {fault}") from None
    return manifest


def _read(file: Path) -> tuple[BankFile, dict[str, bytes]]:
    """The manifest and the members of a bank's file."""
    names = [_MANIFEST, *_LOG]
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sorted(entry.filename for entry in entries) != sorted(names):
                raise InputError(f"{file} is no bank: it does not hold {', '.join(names)} alone")
            if sum(entry.file_size for entry in entries) > _MOST_BYTES:
                raise InputError(
                    f"{file} is larger than any bank: {_MOST_BYTES} bytes are the most"
                )
            # The archive reads no more of a member than its stated size.
            members = {name: archive.read(name) for name in names}
        return BankFile.model_validate_json(members[_MANIFEST]), members
    except FileNotFoundError:
        raise InputError(f"there is no file {file}: give {_GIVE}") from None
    except ValidationError as fault:
        place = ".".join(str(step) for step in fault.errors()[0]["loc"]) or "all"
        raise InputError(
            f"{file} is no bank that this version of fewtune reads: {place} in its manifest is not "
            "as it should be; export it again with this version"
        ) from None
    except _UNREADABLE as fault:
        raise InputError(f"{file} cannot be read as a bank ({fault}): give {_GIVE}") from None
