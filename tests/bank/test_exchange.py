"""A bank as one file: it comes back as it was, and what does not fit is refused in one line."""

import base64
import json
import struct
import zipfile
from pathlib import Path

import pytest

from fewtune.bank.bank import build_bank
from fewtune.bank.exchange import export_bank, import_bank
from fewtune.errors import InputError
from fewtune.options import BankOptions
from fewtune.storage.database import read_workloads
from tests import tuned_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    (folder / "tiny").symlink_to(tuned_tiny.tuned())
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory, logs):
    path = tmp_path_factory.mktemp("exported") / "tiny.bank"
    export_bank(logs / "tiny", path, tuned_tiny.fingerprint(), licence="CC0-1.0", best=100)
    return path


def changed(file: Path, target: Path, **members: bytes) -> Path:
    """The file with members of other content."""
    with zipfile.ZipFile(file) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in {**held, **members}.items():
            archive.writestr(name, content)
    return target


def with_manifest(file: Path, target: Path, **values: object) -> Path:
    with zipfile.ZipFile(file) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    content = json.dumps({**manifest, **values}).encode()
    return changed(file, target, **{"manifest.json": content})


def without_digest(file: Path, target: Path) -> Path:
    with zipfile.ZipFile(file) as archive:
        holds = json.loads(archive.read("manifest.json"))["holds_for"]
    return with_manifest(file, target, holds_for={**holds, "sha256": ""})


def test_what_was_exported_comes_back(tmp_path, logs, file):
    folder = tmp_path / "bank" / "tiny"
    folder.mkdir(parents=True)
    told = import_bank(file, tuned_tiny.fingerprint(), folder)
    assert told.licence == "CC0-1.0"
    before, after = read_workloads([logs / "tiny"]), read_workloads([folder])
    assert {d: [t.key for t in w.trials] for d, w in before.items()} == {
        d: [t.key for t in w.trials] for d, w in after.items()
    }
    built = tmp_path / "built"
    built.mkdir()
    report = build_bank(BankOptions(logs=str(folder.parent)), tuned_tiny.fingerprint(), built)
    assert report.entries


def test_what_is_there_is_not_written_over(logs, file):
    with pytest.raises(InputError, match="there already"):
        export_bank(logs / "tiny", file, tuned_tiny.fingerprint(), licence="")


@pytest.mark.parametrize(
    ("key", "value"), [("machine", "another CPU"), ("threads", 96), ("tvm", "0.1")]
)
def test_a_bank_of_another_machine_is_refused(tmp_path, file, key, value):
    with zipfile.ZipFile(file) as archive:
        holds = json.loads(archive.read("manifest.json"))["holds_for"]
    foreign = with_manifest(file, tmp_path / "foreign", holds_for={**holds, key: value})
    with pytest.raises(InputError, match=f"does not fit here: its {key} is"):
        import_bank(foreign, tuned_tiny.fingerprint(), tmp_path)


def test_files_that_are_no_banks_are_refused_in_one_sentence(tmp_path, file):
    text = tmp_path / "text"
    text.write_text("no zip")
    record = b"{}" + b"\n"
    cases = {
        "there is no file .*: give a file that": tmp_path / "nowhere",
        "cannot be read .*: give a file that": text,
        "does not hold": changed(file, tmp_path / "more", **{"../evil": b""}),
        "schema_version in its manifest": with_manifest(
            file, tmp_path / "newer", schema_version=99
        ),
        "format in its manifest": with_manifest(file, tmp_path / "other", format="x"),
        "licence in its manifest": with_manifest(file, tmp_path / "odd", licence=3),
        "is damaged": changed(
            file, tmp_path / "damaged", **{"database_tuning_record.json": record}
        ),
    }
    for place, (match, path) in enumerate(cases.items()):
        folder = tmp_path / str(place)
        folder.mkdir()
        with pytest.raises(InputError, match=match):
            import_bank(path, tuned_tiny.fingerprint(), folder)
    assert not (tmp_path.parent / "evil").exists()


def test_a_module_that_holds_itself_ends_no_process(tmp_path, file):
    with zipfile.ZipFile(file) as archive:
        lines = archive.read("database_workload.json").splitlines()
    number, packed = json.loads(lines[0])
    text = base64.b64decode(packed)[8:]
    graph = json.loads(text)
    root = graph["nodes"][graph["root_index"]]["data"]
    root[next(key for key, value in root.items() if value)] = graph["root_index"]
    text = json.dumps(graph).encode()
    packed = base64.b64encode(struct.pack("<Q", len(text)) + text).decode()
    content = b"\n".join([json.dumps([number, packed]).encode(), *lines[1:], b""])
    crafted = changed(file, tmp_path / "crafted", **{"database_workload.json": content})
    crafted = without_digest(crafted, tmp_path / "crafted without digest")
    folder = tmp_path / "bank"
    folder.mkdir()
    with pytest.raises(InputError, match="ended by signal 11 .*while TVM was reading .*bank"):
        import_bank(crafted, tuned_tiny.fingerprint(), folder)
