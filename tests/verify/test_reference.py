"""Right outputs pass and wrong ones do not, whatever other values the output holds."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from fewtune.errors import InputError
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.verify.draws import drawn_inputs, rare_inputs
from fewtune.verify.locate import locate
from fewtune.verify.make_reference import make_reference
from fewtune.verify.reference import Draw, Reference
from fewtune.verify.values import tensor_specs
from tests.made.onnx_text import model_of
from tests.tiny_models import tiny_convolutional_model
from tests.verify import small_models

LOWEST = float(np.finfo(np.float32).min)
MODELS: dict[str, Callable[[], ModelProto]] = {
    "classifier": small_models.classifier,
    "half": lambda: small_models.classifier(np.float16),
    "detector": small_models.detector,
    "lowest": lambda: small_models.masked(LOWEST),
    "infinite": lambda: small_models.masked(-np.inf),
    "spectrogram": small_models.spectrogram,
    "segmenter": small_models.segmenter,
    "quantised": small_models.quantised,
    "embedding": small_models.embedding,
    "gated": small_models.gated,
    "masked rows": small_models.masked_rows,
    "clipped": small_models.clipped,
}


def reference_of(model: ModelProto, draws: list[Draw] | None = None) -> Reference:
    inputs, outputs = tensor_specs(model)
    draws = drawn_inputs(model, inputs, 0) if draws is None else draws
    return make_reference(model, model, outputs, draws, 1, 0)


def runs(model: ModelProto) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    return OnnxruntimeSession(model, 1, optimised=False).run


def with_weight(model: ModelProto, name: str, change: Callable[[np.ndarray], None]) -> ModelProto:
    """The model with a weight changed in place."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            values = numpy_helper.to_array(tensor).copy()
            change(values)
            tensor.CopyFrom(numpy_helper.from_array(values, name))
    return model


def scaled(values: np.ndarray) -> None:
    values *= values.dtype.type(1.01)


def scaled_by_steps(values: np.ndarray) -> None:
    """Less may vanish where values are rounded to bytes."""
    values *= values.dtype.type(1.02)


def swapped(values: np.ndarray) -> None:
    values[[2, 3]] = values[[3, 2]]


@pytest.mark.parametrize("name", MODELS)
def test_the_model_itself_is_right(name):
    model = MODELS[name]()
    found = reference_of(model).check(runs(model))
    assert found.allowances <= 1
    assert found.text == ""


@pytest.mark.parametrize("name", ["classifier", "detector", "lowest", "infinite", "spectrogram"])
def test_rounding_in_another_order_is_right(name):
    model = MODELS[name]()
    generator = np.random.default_rng(9)
    run = runs(model)

    def rounded(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        moved = {
            key: (value * (1 + generator.choice([-1, 1], value.shape) * 2.0**-23)).astype("f4")
            for key, value in feeds.items()
        }
        return run(moved)

    assert reference_of(model).check(rounded).allowances <= 1


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("classifier", "w1"),
        ("classifier", "w2"),
        ("classifier", "scale"),
        ("classifier", "dense"),
        ("detector", "w1"),
        ("detector", "w2"),
        ("lowest", "w"),
        ("infinite", "w"),
        ("spectrogram", "w"),
        ("quantised", "w"),
        ("embedding", "table"),
        ("embedding", "w"),
        ("masked rows", "w"),
        ("clipped", "w"),
    ],
)
@pytest.mark.parametrize("change", [scaled, swapped])
def test_a_wrong_weight_is_refused(name, weight, change):
    reference = reference_of(MODELS[name]())
    if (name, change) == ("quantised", scaled):
        change = scaled_by_steps
    found = reference.check(runs(with_weight(MODELS[name](), weight, change)))
    assert found.allowances > 1
    assert "output" in found.text


@pytest.mark.parametrize(("name", "row"), [("classifier", 0), ("detector", -1), ("lowest", 0)])
def test_a_wrong_border_is_refused(name, row):
    """The fault of a schedule that reads zeros, or a neighbour, at the padding."""
    model = MODELS[name]()
    pads = next(a for a in model.graph.node[0].attribute if a.name == "pads").ints
    pads[0], pads[2] = (0, 2) if row == 0 else (2, 0)
    assert reference_of(MODELS[name]()).check(runs(model)).allowances > 1


def wrong_scores(output: np.ndarray) -> np.ndarray:
    output[0, 7] *= 1.05
    return output


def without_infinity(output: np.ndarray) -> np.ndarray:
    output[0, 0][np.isneginf(output[0, 0])] = LOWEST
    return output


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        # Beside boxes in pixels; less than 1e-4 of these.
        ("detector", wrong_scores, "at [0, 7, "),
        ("infinite", without_infinity, "onnxruntime's -inf"),
        ("segmenter", lambda y: np.roll(y, 1), "output 'y'"),
        ("segmenter", lambda y: y[:, 1:], "has shape [1, 15, 16], onnxruntime's [1, 16, 16]"),
        ("classifier", lambda y: y.astype(np.float64), "is float64, onnxruntime's float32"),
        # Where onnxruntime's are NaN.
        ("masked rows", np.nan_to_num, "onnxruntime's nan"),
    ],
)
def test_changed_outputs_are_refused(name, change, said):
    run = runs(MODELS[name]())
    found = reference_of(MODELS[name]()).check(lambda feeds: [change(run(feeds)[0].copy())])
    assert found.allowances > 1
    assert said in found.text


def test_one_value_may_take_another_step_but_not_many():
    model, run = small_models.quantised(), runs(small_models.quantised())

    def stepped(every: int) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
        def outputs(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            (output,) = run(feeds)
            output = output.copy()
            output.ravel()[::every] += 0.05
            return [output]

        return outputs

    reference = reference_of(model)
    assert reference.check(stepped(200)).allowances <= 1
    assert reference.check(stepped(5)).allowances > 1


def test_failures_of_onnxruntime_are_reported_as_its_own():
    model = small_models.spectrogram()
    reference = reference_of(model)
    assert [each.draw.name for each in reference.checked] == [
        "inputs uniform in 0 to 1",
        "positive inputs",
    ]
    assert reference.notes[0].startswith("onnxruntime itself gives NaN in ")
    negative = [Draw("negative inputs", {"x": -np.ones((5, 6), np.float32)})]
    with pytest.raises(InputError, match="onnxruntime itself gives NaN .*--inputs"):
        reference_of(model, negative)


def test_sums_may_be_rounded_to_the_other_side_of_a_kink():
    """Elements that ReLU sets to zero in every noise run may be positive in another order."""
    model = small_models.clipped()
    weight = numpy_helper.to_array(model.graph.initializer[0])

    def reordered(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        parts = np.split(feeds["x"], 512, 1), np.split(weight, 512, 0)
        total = sum(a @ b for a, b in zip(*parts, strict=True))
        return [np.maximum(total, 0)]

    found = reference_of(model).check(reordered)
    assert found.allowances <= 1, found.text


def test_a_written_reference_is_read_unchanged(tmp_path):
    reference = reference_of(small_models.embedding())
    reference.write(tmp_path)
    first = (tmp_path / "reference.npz").read_bytes()
    again = Reference.read(tmp_path)
    again.write(tmp_path)
    assert (tmp_path / "reference.npz").read_bytes() == first
    reference_of(small_models.embedding()).write(tmp_path)
    assert (tmp_path / "reference.npz").read_bytes() == first
    assert again.check(runs(small_models.embedding())).allowances <= 1


def test_a_damaged_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "reference.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(InputError, match="cannot be read .* import the model again"):
        Reference.read(tmp_path)


def test_a_simplified_model_that_onnxruntime_refuses_is_not_needed(tmp_path):
    model, strange = small_models.classifier(), small_models.classifier()
    strange.graph.node[2].op_type = "Unheard"
    inputs, outputs = tensor_specs(model)
    draws = drawn_inputs(model, inputs, 0)
    reference = make_reference(model, strange, outputs, draws, 1, 0)
    assert reference.check(runs(model)).allowances <= 1


def test_a_fault_of_the_simplified_model_is_not_noise():
    model, wrong = small_models.classifier(), small_models.classifier()
    name = next(t.name for t in wrong.graph.initializer if len(t.dims) > 1)
    with_weight(wrong, name, swapped)
    inputs, outputs = tensor_specs(model)
    reference = make_reference(model, wrong, outputs, drawn_inputs(model, inputs, 0), 1, 0)
    assert reference.check(runs(model)).allowances <= 1
    assert reference.check(runs(wrong)).allowances > 1


def test_outputs_that_onnxruntimes_optimiser_changes_are_compared_without_it():
    model = model_of(
        """(float[1,2,8,8] x) => (float[1,2,4,4] y) {
            padded = Pad (x, pads)
            y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (padded)
        }""",
        pads=[0, 0, 1, 1, 0, 0, 1, 1],
    )
    feeds = {"x": -1 - np.random.default_rng(0).random((1, 2, 8, 8)).astype(np.float32)}
    reference = reference_of(model, [Draw("below zero", feeds)])
    assert any("onnxruntime's optimiser changes" in note for note in reference.notes)
    assert reference.check(runs(model)).allowances <= 1
    assert reference.check(OnnxruntimeSession(model, 1).run).allowances > 1


def with_rare_draws(model):
    inputs, outputs = tensor_specs(model)
    draws = drawn_inputs(model, inputs, 0)
    return make_reference(model, model, outputs, draws, 1, 0, rare_inputs(model, inputs, draws[0]))


def test_a_difference_on_rare_inputs_is_told_and_refuses_nothing():
    model = tiny_convolutional_model()
    reference, run = with_rare_draws(model), runs(model)
    assert reference.rare_differences(run) == {}

    def rounded(feeds):
        return run({name: np.rint(each) for name, each in feeds.items()})

    assert {each.draw.name for each in reference.rare} >= {"one huge element"}
    assert "inputs far from zero" in reference.rare_differences(rounded)


def test_an_index_from_the_end_is_checked():
    model = small_models.embedding()
    reference, run = with_rare_draws(model), runs(model)
    assert reference.check(run).allowances <= 1

    def wrong(feeds):
        return run(feeds | {"ids": np.where(feeds["ids"] < 0, 7, feeds["ids"])})

    assert "integers at their limits" in reference.check(wrong).text


def executor(change: Callable[[ModelProto], None]) -> Callable[..., list[np.ndarray]]:
    """Runs a changed model."""

    def run(model: LightModel, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        change(model.model)
        return OnnxruntimeSession(model, 1).run(feeds)

    return run


def located(model: ModelProto, change: Callable[[ModelProto], None]) -> str:
    feeds = drawn_inputs(model, tensor_specs(model)[0], 0)[0].feeds
    return locate(light(model), feeds, executor(change), 1)


@pytest.mark.parametrize(
    ("node", "attribute", "value", "named"),
    [
        ("conv2", "pads", [0, 1, 2, 1], "Conv node 'conv2'"),
        ("norm", "epsilon", 0.1, "BatchNormalization node 'norm'"),
        ("softmax", "axis", 0, "Softmax node 'softmax'"),
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
