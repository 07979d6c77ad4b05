"""The models of the zoo by name, and the published counts that each must have.

Counts of parameters include the running statistics of batch normalizations, as in MXNet's own
table: a graph for inference has them as constants.

SqueezeNet 1.1 is that of the onnx package, which ends in a softmax. The package's other models
differ from the published ones. Its ResNet 50 has the stride in the 3x3 convolution (V1b), its
VGG 19 has no normalization, and its DenseNet 121 has a second scale and shift behind every
normalization (8,146,152 parameters).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnx import ModelProto

from benchmarks.zoo import classifiers
from benchmarks.zoo.builder import GraphBuilder
from benchmarks.zoo.convnext import convnext_tiny
from benchmarks.zoo.count import multiply_adds
from benchmarks.zoo.practice import practice
from benchmarks.zoo.quantize import SUFFIX, quantize
from benchmarks.zoo.squeeze_excite import efficientnet_b0, mobilenet_v3
from benchmarks.zoo.ssd import ssd512_resnet50
from benchmarks.zoo.transformer import bert_mini
from benchmarks.zoo.vision_transformer import vit_tiny
from benchmarks.zoo.yolo import yolov3_mobilenet
from fewtune.errors import InputError, VerificationError
from fewtune.model.light import light_model
from fewtune.onnx_graph.external_data import save
from fewtune.onnx_graph.graph import graph_inputs, parameter_count, static_shape

# Publications round, and differ in what they count besides products.
_MULTIPLY_ADD_TOLERANCE = 0.02


@dataclass(frozen=True)
class ZooModel:
    """A model of the zoo, and its published counts.

    Attributes
    ----------
    build : callable or str
        Adds the model to a builder; or the name of an architecture of the onnx package.
    parameters : int
        As published, or summed over the published layers; that of the graph must be equal.
    multiply_adds : float
        As published, or summed over the published layers; that of the graph must be within 2 %.
    source : str
        Source of both figures.
    extra_multiply_adds : int
        Multiply-adds that the published figure lacks, for the reason in ``source``.
    """

    build: Callable[[GraphBuilder], None] | str
    parameters: int
    multiply_adds: float
    source: str
    extra_multiply_adds: int = 0

    @property
    def expected_multiply_adds(self) -> float:
        """Multiply-adds that the graph must have."""
        return self.multiply_adds + self.extra_multiply_adds


@dataclass(frozen=True)
class Counts:
    """Counts of a graph.

    Attributes
    ----------
    inputs : dict of str to list of int
        Name of each input to its shape.
    parameters, multiply_adds : int
    """

    inputs: dict[str, list[int]]
    parameters: int
    multiply_adds: int


# Parameters and multiply-adds of practice networks, by seed. Predictors learn more from many shapes
# than from many trials of each. Even seeds draw the most frequent shapes.
_PRACTICE = {
    1: (6_089_768, 3_609_148_032),
    2: (15_779_984, 3_624_438_320),
    3: (10_955_744, 3_496_226_064),
    4: (14_515_840, 3_626_958_336),
    5: (15_695_000, 4_289_656_768),
    6: (12_987_520, 4_413_565_952),
    7: (10_791_328, 4_519_612_712),
    8: (14_992_816, 2_953_810_432),
    9: (9_234_104, 4_322_416_320),
    10: (8_156_336, 3_654_159_872),
    11: (18_783_536, 3_919_521_280),
    12: (14_722_288, 3_853_751_296),
    13: (8_216_888, 3_250_117_304),
    14: (15_941_472, 4_065_191_424),
    15: (8_808_880, 3_231_769_888),
    16: (17_224_032, 3_711_308_032),
}

ZOO = {
    "mobilenet_v2": ZooModel(
        classifiers.mobilenet_v2,
        3_539_136,
        0.301e9,
        "MXNet model zoo; torchvision's 0.301 G + 0.013 G for the first block's extra 1x1",
        extra_multiply_adds=32 * 32 * 112 * 112,
    ),
    "resnet50_v1": ZooModel(
        partial(classifiers.resnet_v1, depth=50),
        25_629_032,
        3.8e9,
        "MXNet model zoo; He et al. 2015, table 1",
    ),
    "vgg19_bn": ZooModel(
        classifiers.vgg19_bn, 143_689_256, 19.63e9, "MXNet model zoo; torchvision"
    ),
    "squeezenet_v1_1": ZooModel("squeezenet", 1_235_496, 0.349e9, "MXNet model zoo; torchvision"),
    "densenet121": ZooModel(
        partial(classifiers.densenet, depth=121), 8_062_504, 2.83e9, "MXNet model zoo; torchvision"
    ),
    "yolov3_mobilenet": ZooModel(
        yolov3_mobilenet, 24_286_881, 10.156e9, "none published: sum over GluonCV's layers"
    ),
    "ssd512_resnet50": ZooModel(
        ssd512_resnet50, 36_528_238, 22.332e9, "none published: sum over GluonCV's layers"
    ),
    "bert_mini": ZooModel(
        bert_mini,
        11_170_560,
        0.4363e9,
        "sum over the layers; Turc et al. 2019 say 11.3 M with pre-training heads (97,340)",
    ),
    # Second models of a family, to measure what a bank of earlier logs saves.
    "resnet101_v1": ZooModel(
        partial(classifiers.resnet_v1, depth=101),
        44_695_144,
        7.6e9,
        "MXNet model zoo; He et al. 2015, table 1",
    ),
    "densenet169": ZooModel(
        partial(classifiers.densenet, depth=169), 14_307_880, 3.36e9, "MXNet model zoo; torchvision"
    ),
    "convnext_tiny": ZooModel(convnext_tiny, 28_589_128, 4.46e9, "torchvision"),
    # Operators between the convolutions of mobile networks, and a transformer with odd extents.
    "efficientnet_b0": ZooModel(
        efficientnet_b0, 5_330_564, 0.386e9, "torchvision: 5,288,548 and 42,016 statistics"
    ),
    "mobilenet_v3": ZooModel(
        mobilenet_v3, 5_507_432, 0.217e9, "torchvision: 5,483,032 and 24,400 statistics"
    ),
    "vit_tiny": ZooModel(vit_tiny, 5_717_416, 1.258e9, "timm; Touvron et al. 2020, table 5"),
    **{
        f"practice_{seed}": ZooModel(
            partial(practice, seed=seed, usual=seed % 2 == 0),
            *counts,
            "none published: sum over the layers",
        )
        for seed, counts in _PRACTICE.items()
    },
}


def zoo_names() -> list[str]:
    """Names of the models of the zoo, in the order of the table."""
    return list(ZOO)


def zoo_model(name: str, seed: int, values: bool = True) -> ModelProto:
    """Make a model of the zoo with random weights.

    Parameters
    ----------
    name : str
        One of `zoo_names`.
    seed : int
        The same seed gives a byte-identical model.
    values : bool
        Whether large weights get values. Without them a model is made at once, for counting.

    Returns
    -------
    model : ModelProto
        float32, static shapes, weights as initialisers only (IR version 8).

    Raises
    ------
    InputError
        If there is no such model.
    """
    build = _entry(name).build
    if isinstance(build, str):
        return light_model(build, seed)
    builder = GraphBuilder(name, seed, values)
    build(builder)
    return builder.model


def count(name: str) -> Counts:
    """Count a model's parameters and multiply-adds from its graph.

    Raises
    ------
    InputError
        If there is no such model.
    """
    model = zoo_model(name, 0, values=False)
    inputs = {value.name: static_shape(value) or [] for value in graph_inputs(model.graph)}
    return Counts(inputs, parameter_count(model), multiply_adds(model))


def verify(name: str) -> Counts:
    """Check that a model has its published counts.

    Returns
    -------
    counts : Counts
        Counts of its graph.

    Raises
    ------
    InputError
        If there is no such model.
    VerificationError
        If its parameters differ from the published number, or its multiply-adds by more than 2 %.
    """
    entry, found = _entry(name), count(name)
    if found.parameters != entry.parameters:
        raise VerificationError(
            f"zoo model {name!r} has {found.parameters:,} parameters instead of "
            f"{entry.parameters:,} ({entry.source})"
        )
    expected = entry.expected_multiply_adds
    if abs(found.multiply_adds - expected) > _MULTIPLY_ADD_TOLERANCE * expected:
        raise VerificationError(
            f"zoo model {name!r} takes {found.multiply_adds / 1e9:.3f} G multiply-adds instead of "
            f"{expected / 1e9:.3f} G ({entry.source})"
        )
    return found


def written(name: str, folder: Path, seed: int = 0) -> Path:
    """The ``.onnx`` file of a model in a folder, in eight bits if the name ends with ``-int8``."""
    path = folder / f"{name}.onnx"
    if not path.is_file():
        save(any_model(name, seed), path)
    return path


def any_model(name: str, seed: int = 0) -> ModelProto:
    """A model of the zoo, in eight bits if its name ends with ``-int8``."""
    model = zoo_model(name.removesuffix(SUFFIX), seed)
    return quantize(model, seed) if name.endswith(SUFFIX) else model


def _entry(name: str) -> ZooModel:
    if name not in ZOO:
        raise InputError(f"no zoo model is called {name!r}; the zoo has {', '.join(ZOO)}")
    return ZOO[name]
