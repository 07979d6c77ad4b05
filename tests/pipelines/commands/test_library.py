"""`fewtune info` says what a library is, or that a file is none."""

import json
from dataclasses import asdict

from fewtune.deploy.note import read_note
from fewtune.pipelines.cli import main
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


def test_info_of_another_file_is_a_sentence(tmp_path, capsys):
    (tmp_path / "other").write_bytes(b"nothing")
    assert main(["info", str(tmp_path / "other")]) == 2
    assert "is no library of fewtune, or is cut off" in capsys.readouterr().err
