"""A session of several shapes: the given shape chooses; others are padded, handed over, refused."""

import numpy as np
import onnx
import pytest

from fewtune.deploy.note import Function, Paddable, Tensor, tail
from fewtune.deploy.session import InferenceSession
from fewtune.errors import InputError
from fewtune.runtime.executable import export_library, with_own_threads
from fewtune.runtime.tvm import relax, te
from fewtune.util.files import file_sha256
from tests import tiny_models, tuned_tiny
from tests.made import libraries

LENGTHS = {"main": 8, "main_1": 4}
GIVEN = np.random.default_rng(0).normal(size=(1, 8, 3)).astype("float32")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A library that doubles numbers of two lengths."""
    builder = relax.BlockBuilder()
    for name, length in LENGTHS.items():
        x = relax.Var("x", relax.TensorType((1, length, 3), "float32"))
        with builder.function(name, [x]):
            with builder.dataflow():
                made = builder.emit_te(
                    lambda x: te.compute(x.shape, lambda *at: x(*at) * 2, name="doubled"), x
                )
                given = builder.emit_output(made)
            builder.emit_func_output(given)
    path = tmp_path_factory.mktemp("shapes") / "bare.so"
    export_library(relax.build(builder.get(), tuned_tiny.target()), path, with_own_threads(1))
    return path


def library(bare, name, *paddable, names=LENGTHS):
    functions = tuple(
        Function(
            regime,
            each,
            (Tensor("x", "float32", (1, length, 3)),),
            (Tensor("y", "float32", (1, length, 3)),),
        )
        for regime, (each, length) in zip(names, LENGTHS.items(), strict=True)
    )
    described = libraries.note(
        sha256=file_sha256(bare), functions=functions, limits={}, paddable=paddable
    )
    path = bare.parent / f"{name}.so"
    path.write_bytes(bare.read_bytes() + tail(described))
    return path


@pytest.fixture(scope="module")
def fixed(bare):
    return library(bare, "fixed")


@pytest.fixture(scope="module")
def paddable(bare):
    return library(bare, "paddable", Paddable("length", 7.0, {"x": 1}, {"y": 1}))


@pytest.mark.parametrize(("length", "served_by"), [(8, "x=1x8x3"), (4, "x=1x4x3")])
def test_the_given_shape_chooses_the_function(fixed, length, served_by):
    made = InferenceSession(fixed)
    given = GIVEN[:, :length]
    np.testing.assert_array_equal(made.run(None, {"x": given})[0], 2 * given)
    assert made.served_by == served_by


def test_shapes_have_the_names_that_were_given(bare):
    made = InferenceSession(library(bare, "named", names=("prefill", "decode")))
    assert made.shapes == {"prefill": {"x": (1, 8, 3)}, "decode": {"x": (1, 4, 3)}}
    given = GIVEN[:, :4]
    np.testing.assert_array_equal(made.run(None, {"x": given})[0], 2 * given)
    assert made.served_by == "decode: x=1x4x3"


def test_another_shape_is_refused_with_those_there_are(fixed):
    made = InferenceSession(fixed)
    with pytest.raises(InputError, match=r"made for \(1, 8, 3\) or \(1, 4, 3\)"):
        made.run(None, {"x": GIVEN[:, :3]})


@pytest.mark.parametrize(
    ("length", "served_by"), [(3, "x=1x4x3, padded"), (5, "x=1x8x3, padded"), (4, "x=1x4x3")]
)
def test_a_paddable_dimension_grows_to_the_next_shape(paddable, length, served_by):
    made = InferenceSession(paddable)
    given = GIVEN[:, :length]
    np.testing.assert_array_equal(made.run(None, {"x": given})[0], 2 * given)
    assert made.served_by == served_by
    into = np.empty_like(given)
    made.run_with({"y": into}, {"x": given})
    np.testing.assert_array_equal(into, 2 * given)


def test_only_what_is_paddable_is_padded_and_only_so_far(paddable):
    made = InferenceSession(paddable)
    for given in (np.concatenate([GIVEN, GIVEN], axis=1), GIVEN[:, :4, :2], GIVEN[0]):
        with pytest.raises(InputError, match="was made"):
            made.run(None, {"x": given})


def test_onnxruntime_serves_other_shapes_where_that_was_asked_for(fixed, tmp_path):
    nodes = [onnx.helper.make_node("Add", ["x", "x"], ["y"])]
    shape = [1, "length", 3]
    model = tiny_models.make_model(nodes, {"x": shape}, {"y": shape})
    made = InferenceSession(fixed, fallback=tiny_models.write_model(model, tmp_path))
    np.testing.assert_array_equal(made.run(None, {"x": GIVEN})[0], 2 * GIVEN)
    assert made.served_by == "x=1x8x3"
    np.testing.assert_array_equal(made.run(None, {"x": GIVEN[:, :3]})[0], 2 * GIVEN[:, :3])
    assert made.served_by == "onnxruntime"


def test_a_fallback_that_is_missing_or_of_another_model_is_refused(fixed, tmp_path):
    with pytest.raises(InputError, match=r"absent\.onnx is missing"):
        InferenceSession(fixed, fallback=tmp_path / "absent.onnx")
    other = tiny_models.write_model(tiny_models.elementwise_model(), tmp_path)
    with pytest.raises(InputError, match="onnxruntime cannot run the model"):
        InferenceSession(fixed, fallback=other).run(None, {"x": GIVEN[:, :3]})
