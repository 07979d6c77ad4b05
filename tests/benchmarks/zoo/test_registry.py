"""The zoo: every model has its published counts and is valid ONNX."""

import onnx
import pytest

from benchmarks.zoo.registry import PRACTICE, ZOO, verify, zoo_model
from fewtune.errors import VerificationError
from fewtune.onnx_graph.graph import detach_weights, static_shape

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ZOO)
def test_counts_are_the_published_ones(name):
    verify(name)


def test_another_count_is_refused(monkeypatch):
    entry = ZOO["squeezenet_v1_1"]._replace(parameters=1)
    monkeypatch.setitem(ZOO, "squeezenet_v1_1", entry)
    with pytest.raises(VerificationError, match="instead of 1$"):
        verify("squeezenet_v1_1")


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


def test_detectors_decode_every_anchor():
    for name, anchors, classes in (("yolov3_mobilenet", 10647, 20), ("ssd512_resnet50", 6132, 21)):
        outputs = {
            value.name: static_shape(value)
            for value in zoo_model(name, 0, values=False).graph.output
        }
        assert outputs == {"boxes": [1, anchors, 4], "scores": [1, anchors, classes]}
