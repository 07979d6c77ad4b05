"""The command `fewtune zoo`."""

from __future__ import annotations

import onnx
import pytest

from fewtune.onnx_graph.graph import parameter_count
from fewtune.zoo.onnx_light import light_names
from fewtune.zoo.registry import ZOO, zoo_names
from pipelines.cli import main
from stages.paths import Places
from tests.made.checkout import refused

pytestmark = pytest.mark.slow


def test_command_lists_the_zoo_anywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == zoo_names()
    (line,) = (line for line in lines if line.startswith("bert_mini "))
    assert "3 of 1x128" in line
    assert "11.171" in line


def test_command_registers_and_lists_the_models(project, capsys):
    assert main(["zoo", "vgg19_bn", "densenet121", "vgg19_bn", "--seed", "2"]) == 0
    places = Places(project)
    assert places.registered() == ["densenet121", "squeezenet", "vgg19_bn"]
    assert places.registration("vgg19_bn").read_text() == "zoo: vgg19_bn\nseed: 2\n"
    assert "models: [squeezenet, vgg19_bn, densenet121]" in places.params.read_text()
    assert "tune with: fewtune run vgg19_bn densenet121" in capsys.readouterr().out
    assert "another model is registered" in refused(capsys, "zoo", "vgg19_bn")
    assert main(["zoo", "vgg19_bn", "--replace"]) == 0
    assert places.registration("vgg19_bn").read_text() == "zoo: vgg19_bn\nseed: 0\n"


def test_command_refuses_an_unknown_name_before_it_makes_anything(project, capsys):
    line = refused(capsys, "zoo", "vgg19_bn", "vgg20")
    assert line.startswith("no zoo model is called 'vgg20'; the zoo has mobilenet_v2, ")
    assert Places(project).registered() == ["squeezenet"]
    hint = refused(capsys, "run", "vgg19_bn")
    assert "register it with `fewtune zoo vgg19_bn`" in hint


def test_command_writes_files_instead(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "give some, or --all" in refused(capsys, "zoo", "--output", "onnx")
    assert main(["zoo", "squeezenet_v1_1", "--output", "onnx"]) == 0
    assert capsys.readouterr().out == "onnx/squeezenet_v1_1.onnx: 4.9 MB\n"
    model = onnx.load("onnx/squeezenet_v1_1.onnx")
    assert parameter_count(model) == ZOO["squeezenet_v1_1"].parameters


def test_names_that_the_onnx_package_has_too_mean_the_zoo_to_the_command(project, capsys):
    assert "densenet121" in light_names()
    assert "`fewtune zoo densenet121`" in refused(capsys, "run", "densenet121")
