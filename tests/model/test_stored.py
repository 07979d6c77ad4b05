"""A lowered module and its weights on disk."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from onnx import helper

from fewtune.errors import InputError
from fewtune.model.lower import lower
from fewtune.model.stored import WEIGHTS, read_stored, write_stored
from fewtune.onnx_graph import simplify as prepare
from fewtune.onnx_graph.bind import bind_shapes
from fewtune.runtime.tvm import relax, te, tvm
from tests import tuned_tiny
from tests.tiny_models import make_model, random_weight


@cache
def lowered() -> tvm.IRModule:
    """Three products: two with equal weights that lie beside the text, one with small ones.

    An input has a name much like that of stored weights.
    """
    large, small = (random_weight(np.random.default_rng(0), n, n) for n in (160, 4))
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["one"]),
        helper.make_node("Tanh", ["one"], ["bent"]),
        helper.make_node("MatMul", ["bent", "equal"], ["y"]),
        helper.make_node("MatMul", ["weights_1", "small"], ["w"]),
    ]
    model = make_model(
        nodes,
        {"x": [8, 160], "weights_1": [8, 4]},
        {"y": [8, 160], "w": [8, 4]},
        {"large": large, "equal": large, "small": small},
    )
    return lower(prepare.simplify(bind_shapes(model, {}, {})), tuned_tiny.target(), "NHWC")


def test_a_module_comes_back_with_its_weights(tmp_path):
    digest = write_stored(lowered(), tmp_path)
    assert tvm_ffi.structural_equal(read_stored(tmp_path, digest), lowered())
    # Writing it leaves it as it was.
    assert write_stored(lowered(), tmp_path) == digest


def test_equal_weights_are_stored_once_and_small_ones_in_the_text(tmp_path):
    write_stored(lowered(), tmp_path)
    with np.load(tmp_path / WEIGHTS) as stored:
        assert [each.shape for each in stored.values()] == [(160, 160)]


@pytest.mark.parametrize(("dtype", "beside"), [("int64", 1), ("float16", 1), ("bfloat16", 0)])
def test_weights_keep_their_type(dtype, beside, tmp_path):
    ones = np.ones((256, 256), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType(ones.shape, dtype))
    with builder.function("main", [given]):
        weights = relax.const(tvm.runtime.tensor(ones))
        builder.emit_func_output(
            builder.emit_te(
                lambda x, w: te.compute(x.shape, lambda *at: x(*at) + w(*at)), given, weights
            )
        )
    module = builder.get()
    assert tvm_ffi.structural_equal(read_stored(tmp_path, write_stored(module, tmp_path)), module)
    with np.load(tmp_path / WEIGHTS) as stored:
        assert len(stored) == beside


def damaged(content: bytes, how: str) -> bytes:
    """A file that is cut, has one other byte among its weights, or is empty."""
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    return {
        "cut": content[:middle],
        "flipped": content[:middle] + flipped + content[middle + 1 :],
        "empty": b"",
    }[how]


@pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
def test_damaged_weights_are_told(how, tmp_path):
    digest = write_stored(lowered(), tmp_path)
    path = tmp_path / WEIGHTS
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(InputError, match=r"weights\.npz is not what its stage wrote.*again"):
        read_stored(tmp_path, digest)


def test_no_byte_around_the_weights_ends_in_another_error(tmp_path):
    digest = write_stored(lowered(), tmp_path)
    path = tmp_path / WEIGHTS
    content = path.read_bytes()
    told = 0
    for place in (*range(200), *range(len(content) - 200, len(content))):
        path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
        try:
            assert tvm_ffi.structural_equal(read_stored(tmp_path, digest), lowered())
        except InputError as error:
            told += str(error).startswith(f"{path} is not what its stage wrote")
    assert told > 200


def test_other_and_missing_weights_are_told(tmp_path):
    digest = write_stored(lowered(), tmp_path)
    with np.load(tmp_path / WEIGHTS) as stored:
        others = {name: array + 1 for name, array in stored.items()}
    np.savez(tmp_path / WEIGHTS, **others)
    with pytest.raises(InputError, match="other weights are named"):
        read_stored(tmp_path, digest)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"weights\.npz"):
        read_stored(tmp_path, digest)
