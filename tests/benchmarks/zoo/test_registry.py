"""The zoo: every model has its published counts and is valid ONNX."""

import json

import onnx
import pytest

from benchmarks.zoo.registry import PRACTICE, ZOO, main, verify, zoo_model
from fewtune.onnx_graph.graph import detach_weights, static_shape

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ZOO)
def test_counts_are_the_published_ones(name):
    verify(name)


def test_files_are_named_as_json(tmp_path, monkeypatch, capsys):
    given = ["zoo", "squeezenet_v1_1", "--json", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", given)
    main()
    (path,) = json.loads(capsys.readouterr().out).values()
    onnx.checker.check_model(path)


@pytest.mark.parametrize("name", [*ZOO, *PRACTICE[:2]])
def test_graph_is_valid_and_its_inferred_outputs_are_those_it_declares(name):
    model = zoo_model(name, 0, values=False)
    assert model.opset_import[0].version <= 17
    light_model, _ = detach_weights(model)
    onnx.checker.check_model(light_model, full_check=True)
    declared = {value.name: static_shape(value) for value in light_model.graph.output}
    assert all(declared.values())
    for value in light_model.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(light_model, data_prop=True)
    assert {value.name: static_shape(value) for value in inferred.graph.output} == declared
