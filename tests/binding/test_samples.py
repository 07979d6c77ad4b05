"""Sample inputs of the user are read and checked against the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewtune.binding.samples import read_samples, sample_shapes
from fewtune.errors import InputError
from tests.tiny_models import tiny_convolutional_model

IMAGE = np.ones((1, 3, 16, 16), np.float32)


def test_samples_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", input=IMAGE)
    samples = read_samples(tmp_path / "inputs.npz")
    np.testing.assert_array_equal(samples["input"], IMAGE)
    assert sample_shapes(tiny_convolutional_model(), samples, {}, ()) == {}


def test_samples_bind_dynamic_dimensions(tmp_path: Path) -> None:
    model = tiny_convolutional_model(batch="batch")
    assert sample_shapes(model, {"input": np.repeat(IMAGE, 2, 0)}, {}, ()) == {
        "input": [2, 3, 16, 16]
    }


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": IMAGE}, "holds? 'other', which is no input"),
        ({}, "hold no array for input 'input'"),
        ({"input": IMAGE.astype(complex)}, "holds complex128"),
        ({"input": IMAGE.astype(np.float64)}, "holds float64, the model wants float32"),
        ({"input": IMAGE * np.nan}, "holds NaN"),
        ({"input": IMAGE[:0]}, "is empty"),
    ],
)
def test_unfitting_samples_are_refused(arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_shapes(tiny_convolutional_model(), arrays, {}, ())


@pytest.mark.parametrize("content", [b"no arrays", b"PK\x03\x04 nothing", b""])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "inputs.npz").write_bytes(content)
    with pytest.raises(InputError, match="numpy.savez"):
        read_samples(tmp_path / "inputs.npz")


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez_compressed(path, input=np.random.default_rng(0).random((64, 64)))
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(InputError, match="no .npz file of plain arrays"):
        read_samples(path)
