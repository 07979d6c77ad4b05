"""Models that are refused when they are registered."""

import pytest
from onnx import ModelProto

from fewtune.errors import InputError
from fewtune.model.source import add_model


def refused(models, source, match, **arguments):
    """Add a model that must be refused: one line, nothing left behind."""
    with pytest.raises(InputError, match=match) as caught:
        add_model(str(source), models, **arguments)
    assert "\n" not in str(caught.value)
    assert not models.exists() or list(models.iterdir()) == []
    return str(caught.value)


def read(path):
    return ModelProto.FromString(path.read_bytes())


def external_location(path, location):
    """Let every external tensor of a model file point to ``location``."""
    model = read(path)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
