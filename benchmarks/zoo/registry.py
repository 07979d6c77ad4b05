"""The models of the zoo by name, and the published counts that each must have.

Counts of parameters include the running statistics of batch normalizations, as in MXNet's own
table: a graph for inference has them as constants.

SqueezeNet 1.1 is that of the onnx package, which ends in a softmax. The package's other models
differ from the published ones. Its ResNet 50 has the stride in the 3x3 convolution (V1b), its
VGG 19 has no normalization, and its DenseNet 121 has a second scale and shift behind every
normalization (8,146,152 parameters).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnx import ModelProto

from benchmarks.helpers.common import one_line_errors
from benchmarks.zoo import classifiers
from benchmarks.zoo.builder import GraphBuilder
from benchmarks.zoo.count import multiply_adds
from benchmarks.zoo.practice import practice
from benchmarks.zoo.quantize import SUFFIX, quantize
from benchmarks.zoo.ssd import ssd512_resnet50
from benchmarks.zoo.transformer import bert_mini
from benchmarks.zoo.yolo import yolov3_mobilenet
from fewtune.errors import InputError, VerificationError
from fewtune.model.light import light_model
from fewtune.onnx_graph.external_data import save
from fewtune.onnx_graph.graph import parameter_count

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
    """

    build: Callable[[GraphBuilder], None] | str
    parameters: int
    multiply_adds: float
    source: str


# Predictors learn more from many shapes than from many trials of each.
PRACTICE = tuple(f"practice_{seed}" for seed in range(1, 17))
ZOO = {
    "mobilenet_v2": ZooModel(
        classifiers.mobilenet_v2,
        3_539_136,
        0.314e9,
        "MXNet model zoo; torchvision's 0.301 G + 0.013 G for the first block's extra 1x1",
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
}


def zoo_model(name: str, seed: int, values: bool = True) -> ModelProto:
    """Make a model of the zoo, or a practice network, with random weights.

    Parameters
    ----------
    name : str
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
    if name not in (*ZOO, *PRACTICE):
        raise InputError(f"no zoo model is called {name!r}; the zoo has {', '.join(ZOO)}")
    builder = GraphBuilder(name, seed, values)
    if name in PRACTICE:
        number = PRACTICE.index(name) + 1
        # Even ones draw the most frequent shapes.
        practice(builder, seed=number, usual=number % 2 == 0)
        return builder.model
    build = ZOO[name].build
    if isinstance(build, str):
        return light_model(build, seed)
    build(builder)
    return builder.model


def verify(name: str) -> None:
    """Check that a model has its published counts.

    Raises
    ------
    VerificationError
        If its parameters differ from the published number, or its multiply-adds by more than 2 %.
    """
    entry, model = ZOO[name], zoo_model(name, 0, values=False)
    parameters, products = parameter_count(model), multiply_adds(model)
    is_near = abs(products / entry.multiply_adds - 1) <= _MULTIPLY_ADD_TOLERANCE
    if parameters != entry.parameters or not is_near:
        raise VerificationError(
            f"zoo model {name!r} has {parameters:,} parameters and {products / 1e9:.3f} G "
            f"multiply-adds instead of {entry.parameters:,} and {entry.multiply_adds / 1e9:.3f} G "
            f"({entry.source})"
        )


def written(name: str, folder: Path, seed: int = 0) -> Path:
    """The ``.onnx`` file of a model in a folder, in eight bits if the name ends with ``-int8``."""
    path = folder / f"{name}.onnx"
    if not path.is_file():
        model = zoo_model(name.removesuffix(SUFFIX), seed)
        save(quantize(model, seed) if name.endswith(SUFFIX) else model, path)
    return path


def main() -> None:
    """Write models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="NAME", help="NAME-int8: in eight bits")
    parser.add_argument("--all", action="store_true", help=", ".join(ZOO))
    parser.add_argument("--output", type=Path, default=Path("build/zoo"), metavar="DIR")
    given = parser.parse_args()
    with one_line_errors("zoo"):
        for name in ZOO if given.all else given.models:
            print(written(name, given.output), flush=True)
