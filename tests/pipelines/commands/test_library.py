"""`fewtune info` says what a library is, or that a file is none."""

import json
from dataclasses import asdict

import fewtune
from fewtune.deploy.note import read_note
from fewtune.pipelines.cli import main
from fewtune.util.files import file_sha256
from tests.made import libraries


def test_info_prints_the_note(tmp_path, capsys):
    library = libraries.library(
        tmp_path / "model.so", latencies_ms={"fewtune": 1.5}, conditions={"date": "2026-11-29"}
    )
    assert main(["info", str(library)]) == 0
    told = capsys.readouterr().out
    assert "input      x: float32 [64, 40]" in told
    assert "latency    fewtune 1.5 ms" in told
    assert main(["info", str(library), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described == json.loads(json.dumps(asdict(read_note(library))))


def test_latencies_are_told_of_the_library_that_was_measured(tmp_path, capsys):
    library = libraries.library(tmp_path / "compile" / "model.so")
    report = {
        "library_sha256": file_sha256(library),
        "variants": {"tuned": {"median_ms": 1.5}},
        "conditions": {
            "fingerprint": {"device": "a CPU"},
            "rounds": 9,
            "date": "2026-11-30",
        },
    }
    (tmp_path / "benchmark").mkdir()
    for digest, count in ((report["library_sha256"], 1), ("0" * 64, 0)):
        text = json.dumps(report | {"library_sha256": digest})
        (tmp_path / "benchmark" / "benchmark.json").write_text(text)
        written = fewtune.bundle(library, tmp_path / f"bundle{count}")
        for path in (library, written / "model.so"):
            assert main(["info", str(path)]) == 0
            told = capsys.readouterr().out
            assert told.count("latency    tuned 1.5 ms") == count
            assert told.count("measured   a CPU, 9 rounds, 2026-11-30") == count


def test_info_of_another_file_is_a_sentence(tmp_path, capsys):
    (tmp_path / "other").write_bytes(b"nothing")
    assert main(["info", str(tmp_path / "other")]) == 2
    assert "is no library of fewtune, or is cut off" in capsys.readouterr().err
