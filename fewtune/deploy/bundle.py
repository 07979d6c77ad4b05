"""A folder that runs a tuned library, without fewtune and without TVM's compiler."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from fewtune.deploy.note import Note, read_note, renew
from fewtune.deploy.runtime import FFI, RUNTIME, VERSION, found
from fewtune.errors import InputError, MachineError

LIBRARY, TAR = "model.so", ".tar.gz"
_LOADER = ("__init__.py", "note.py", "runtime.py", "session.py")
_HEADER, _EXAMPLE = "fewtune.hpp", "example.cc"
_INIT = '''"""Runs the library of this bundle."""

from fewtune.deploy.session import InferenceSession, SessionOptions, load

__all__ = ["InferenceSession", "SessionOptions", "load"]
'''
# Where a result has the latencies of its library, beside the library's folder.
_MEASURED = Path("benchmark", "benchmark.json")
# By package: those whose files a bundle copies, and the folder of their licenses.
_LICENSED = {"fewtune": "fewtune", "apache-tvm": "tvm", "apache-tvm-ffi": "tvm-ffi"}


def bundle(library: str | Path, to: str | Path) -> Path:
    """Write a tuned library with all that runs it: TVM's runtime, loaders for Python and C++.

    Parameters
    ----------
    library : str or Path
        Such as `TunedModel.library`.
    to : str or Path
        A folder, or a file that ends in ``.tar.gz``, that is not there yet.

    Returns
    -------
    written : Path
        ``to``. It is written whole or not at all.

    Raises
    ------
    InputError
        If the library is damaged or for another kind of machine, or something is at ``to``.
    MachineError
        If TVM's runtime is not installed, or the disk refuses.
    """
    library, to = Path(library), Path(to)
    note = measured_note(library)
    if not note.runs_here:
        device = note.architecture if note.runs_on_cpu else "a GPU"
        raise InputError(
            f"{library} was made for {device}, and a bundle holds the runtime of this machine's "
            "CPU: bundle it on such a machine"
        )
    # A link that leads nowhere is there, too.
    if os.path.lexists(to):
        raise InputError(f"{to} is there already: remove it, or name another place")
    name = to.name.removesuffix(TAR)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as scratch:
            folder = Path(scratch) / name
            _fill(folder, library, note)
            if to.name.endswith(TAR):
                packed = Path(scratch) / to.name
                with tarfile.open(packed, "w:gz") as archive:
                    archive.add(folder, name)
                # Unlike a rename, a link replaces nothing.
                os.link(packed, to)
            else:
                folder.rename(to)
    except OSError as fault:
        raise MachineError(f"{to} cannot be written: {fault.strerror or fault}") from None
    return to


def measured_note(library: Path) -> Note:
    """The note of a library, with its latencies if it lies in a result that was measured.

    A library is compiled before it is measured, and later steps know it by its digest. So its own
    note has no latencies; a bundle's copy has them.
    """
    note = read_note(library)
    try:
        report = json.loads((library.absolute().parents[1] / _MEASURED).read_text())
        with library.open("rb") as stream:
            is_of_it = hashlib.file_digest(stream, "sha256").hexdigest() == report["library_sha256"]
        of_all = report.get("shapes") or [{"shapes": "", "variants": report["variants"]}]
        latencies_ms = {
            f"{shape['shapes']} {name}".strip(): float(stats["median_ms"])
            for shape in of_all
            for name, stats in shape["variants"].items()
        }
        told = report["conditions"]
        text = f"{told['fingerprint']['device']}, {told['rounds']} rounds, {told['date']}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return note
    if not is_of_it:
        return note
    return replace(note, latencies_ms=latencies_ms, conditions={"measured": text})


def _fill(folder: Path, library: Path, note: Note) -> None:
    here = Path(__file__).parent
    ffi, runtime, version = found()
    copies = {
        LIBRARY: library,
        f"lib/{FFI}": ffi,
        f"lib/{RUNTIME}": runtime,
        f"include/{_HEADER}": here / "cpp" / _HEADER,
        _EXAMPLE: here / "cpp" / _EXAMPLE,
        "fewtune/errors.py": here.parent / "errors.py",
        **{f"fewtune/deploy/{name}": here / name for name in _LOADER},
        **_licenses(here),
    }
    for name, source in copies.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    renew(folder / LIBRARY, note)
    # What was copied is whole, whatever happened to the library meanwhile.
    read_note(folder / LIBRARY)
    (folder / "lib" / VERSION).write_text(f"{version}\n")
    (folder / "fewtune" / "__init__.py").write_text(_INIT)
    (folder / "README.md").write_text(_readme(note, version))


def _licenses(here: Path) -> dict[str, Path]:
    """The licenses of all that is copied, by their place in a bundle."""
    licenses: dict[str, Path] = {}
    for package, folder in _LICENSED.items():
        try:
            for each in files(package) or ():
                if "license" in str(each).lower() or each.name == "NOTICE":
                    place = f"LICENSES/{folder}/{'-'.join(each.parts[-2:])}"
                    licenses[place] = Path(str(each.locate()))
        except PackageNotFoundError:
            continue
    licenses = {place: path for place, path in licenses.items() if path.is_file()}
    if not any(place.startswith("LICENSES/fewtune/") for place in licenses):
        licenses["LICENSES/fewtune/LICENSE"] = here.parents[1] / "LICENSE"
    return licenses


def _readme(note: Note, version: str) -> str:
    first = note.functions[0]
    arrays = ", ".join(
        f'"{each.name}": numpy.zeros({each.shape}, "{each.dtype}")' for each in first.inputs
    )
    return f"""# {note.model}

Made by fewtune {note.versions.get("fewtune", "")} for {note.architecture} with
{" ".join(note.extensions) or "no extensions"}; tuned for {note.threads} threads.
It runs on TVM's runtime {version} (`lib/`), and needs Linux and libstdc++.

Python 3.11 or later, with NumPy (`PYTHONPATH` is this folder):

```python
import fewtune, numpy
session = fewtune.InferenceSession("model.so")
outputs = session.run(None, {{{arrays}}})
```

C++17, without Python:

```sh
g++ -std=c++17 -O2 -I include {_EXAMPLE} -o example -L lib -Wl,--no-as-needed \\
    -ltvm_runtime -ltvm_ffi -Wl,-rpath,'$ORIGIN/lib'
./example model.so
```

`LICENSES/` holds the licenses of fewtune and TVM.
"""
