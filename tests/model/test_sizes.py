"""Several shapes of one model, as users give them."""

import pytest
import yaml

from fewtune.artifacts import ShapeFunction, TensorSpec
from fewtune.errors import InputError
from fewtune.model.registration import REGISTRATION, ModelSource
from fewtune.model.source import add_model, load_registered, paddable_dimensions, sizes_of
from tests import tiny_models
from tests.made.onnx_text import model_of


def encoder():
    """Numbers of a dynamic length through a Relu."""
    kind = 'float["batch","sequence",4]'
    return model_of(f"({kind} x) => ({kind} y) {{y = Relu (x)}}")


@pytest.mark.parametrize(
    ("shapes", "dimensions", "found"),
    [
        (None, None, [({}, {})]),
        ({"x": [1, 3]}, None, [({"x": [1, 3]}, {})]),
        ({"x": [[1, 3], [2, 3]]}, None, [({"x": [1, 3]}, {}), ({"x": [2, 3]}, {})]),
        ([{"x": (1,)}, {"x": (2,)}], {"n": 4}, [({"x": [1]}, {"n": 4}), ({"x": [2]}, {"n": 4})]),
        ({"a": {"x": [1]}, "b": {"x": [2]}}, None, [({"x": [1]}, {}), ({"x": [2]}, {})]),
        (None, {"n": [1, 2], "m": [5, 6]}, [({}, {"n": 1, "m": 5}), ({}, {"n": 2, "m": 6})]),
    ],
)
def test_what_has_several_values_is_taken_value_by_value(shapes, dimensions, found):
    assert [(each.shapes, each.dimensions) for each in sizes_of(shapes, dimensions)] == found


def test_unequal_numbers_of_values_and_repeated_shapes_are_refused():
    with pytest.raises(InputError, match="2 shapes of x and 3 values of dimension n"):
        sizes_of({"x": [[1], [2]]}, {"n": [1, 2, 3]})
    with pytest.raises(InputError, match="n=1 is given twice"):
        sizes_of(None, {"n": [1, 1]})
    with pytest.raises(InputError, match="the shape x=1 is given twice"):
        sizes_of({"a": {"x": [1]}, "b": {"x": [1]}}, None)
    with pytest.raises(InputError, match="'x' have no name"):
        sizes_of({"a": {"x": [1]}, "x": [1]}, None)


def test_a_registration_holds_every_shape_the_largest_first(tmp_path):
    file = tiny_models.write_model(encoder(), tmp_path)
    add_model(str(file), tmp_path, "x", dimensions={"batch": 1, "sequence": [2, 8, 4]})
    shapes = [load_registered(tmp_path, "x", shape).source for shape in range(3)]
    assert [each.dimensions["sequence"] for each in shapes] == [8, 4, 2]
    # One shape is written as it always was.
    add_model(str(file), tmp_path, "y", dimensions={"batch": 1, "sequence": 8})
    kept = yaml.safe_load((tmp_path / "y" / REGISTRATION).read_text())
    assert kept == {"file": "model.onnx", "dimensions": {"batch": 1, "sequence": 8}}
    assert ModelSource.read(tmp_path, "y").further == []


def test_a_shape_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    file = tiny_models.write_model(encoder(), tmp_path)
    with pytest.raises(InputError, match="dimension 2 is fixed to 4"):
        add_model(str(file), tmp_path, "x", [{"x": [1, 2, 4]}, {"x": [1, 2, 5]}])
    with pytest.raises(InputError, match="'length' is given, but no input has it"):
        sizes = {"batch": 1, "sequence": [2, 4]}
        add_model(str(file), tmp_path, "x", dimensions=sizes, paddable={"length": 0})
    assert not (tmp_path / "x").exists()


def function(length, *output):
    specs = [TensorSpec(name=n, shape=s, dtype="float32") for n, s in (("x", [1, length, 4]),)]
    made = TensorSpec(name="y", shape=list(output), dtype="float32")
    return ShapeFunction(function="main", inputs=specs, outputs=[made])


def test_outputs_are_cut_along_the_axis_that_has_the_dimensions_size():
    given = [function(8, 1, 8, 2), function(4, 1, 4, 2)]
    (found,) = paddable_dimensions(encoder(), given, {"sequence": 0.0})
    assert (found.inputs, found.outputs) == ({"x": 1}, {"y": 1})
    with pytest.raises(InputError, match="output 'y' changes with it and has no axis of its size"):
        paddable_dimensions(encoder(), [function(8, 1, 16), function(4, 1, 8)], {"sequence": 0.0})
