"""The first wrong operator is named."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, helper

from fewtune.verify.draws import drawn_inputs
from fewtune.verify.locate import locate
from fewtune.verify.session import OnnxruntimeSession, tensor_specs
from tests.verify import small_models


def executor(change: Callable[[ModelProto], None]) -> Callable[..., list[np.ndarray]]:
    """Runs a changed model."""

    def run(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        change(model)
        return OnnxruntimeSession(model, 1).run(feeds)

    return run


def located(model: ModelProto, change: Callable[[ModelProto], None]) -> str:
    feeds = drawn_inputs(model, tensor_specs(model)[0], 0)[0].feeds
    return locate(model, feeds, executor(change), 1)


@pytest.mark.parametrize(
    ("node", "attribute", "value", "named"),
    [
        ("conv2", "pads", [0, 1, 2, 1], "Conv 'conv2'"),
        ("norm", "epsilon", 0.1, "BatchNormalization 'norm'"),
        ("softmax", "axis", 0, "Softmax 'softmax'"),
    ],
)
def test_the_node_is_named(node, attribute, value, named):
    def change(model: ModelProto) -> None:
        for each in model.graph.node:
            if each.name == node:
                kept = [other for other in each.attribute if other.name != attribute]
                del each.attribute[:]
                each.attribute.extend([*kept, helper.make_attribute(attribute, value)])

    text = located(small_models.classifier(), change)
    assert text.startswith(f"{named}: its value")
    assert text.endswith("what it reads agrees")


def test_a_difference_without_a_wrong_operator_is_reported():
    assert located(small_models.classifier(), lambda model: None).startswith("no operator alone")
