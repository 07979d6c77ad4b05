"""The models of the zoo by name, and the published number of parameters that each must have.

Parameters include the running statistics of batch normalizations, as in MXNet's own table: a graph
for inference has them as constants.

SqueezeNet 1.1 is that of the onnx package, which ends in a softmax. The package's other models
differ from the published ones. Its ResNet 50 has the stride in the 3x3 convolution (V1b), its
VGG 19 has no normalization, and its DenseNet 121 has a second scale and shift behind every
normalization (8,146,152 parameters).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from onnx import ModelProto

from benchmarks.helpers.common import one_line_errors
from benchmarks.zoo import classifiers
from benchmarks.zoo.builder import GraphBuilder
from benchmarks.zoo.practice import practice
from benchmarks.zoo.quantize import SUFFIX, quantize
from benchmarks.zoo.ssd import ssd512_resnet50
from benchmarks.zoo.transformer import bert_mini
from benchmarks.zoo.yolo import yolov3_mobilenet
from fewtune.errors import InputError, VerificationError
from fewtune.model.light import light_model
from fewtune.onnx_graph.external_data import save
from fewtune.onnx_graph.graph import parameter_count


class ZooModel(NamedTuple):
    """What adds a model to a builder, or its name in the onnx package; and its parameters."""

    build: Callable[[GraphBuilder], None] | str
    parameters: int


# Predictors learn more from many shapes than from many trials of each.
PRACTICE = tuple(f"practice_{seed}" for seed in range(1, 17))
ZOO = {
    # MXNet's model zoo.
    "mobilenet_v2": ZooModel(classifiers.mobilenet_v2, 3_539_136),
    "resnet50_v1": ZooModel(partial(classifiers.resnet_v1, depth=50), 25_629_032),
    "vgg19_bn": ZooModel(classifiers.vgg19_bn, 143_689_256),
    "squeezenet_v1_1": ZooModel("squeezenet", 1_235_496),
    "densenet121": ZooModel(partial(classifiers.densenet, depth=121), 8_062_504),
    # None published: sums over GluonCV's layers.
    "yolov3_mobilenet": ZooModel(yolov3_mobilenet, 24_286_881),
    "ssd512_resnet50": ZooModel(ssd512_resnet50, 36_528_238),
    # Sum over the layers; Turc et al. 2019 say 11.3 M with pre-training heads (97,340).
    "bert_mini": ZooModel(bert_mini, 11_170_560),
    # MXNet's. Second models of a family, to measure what a bank of earlier logs saves.
    "resnet101_v1": ZooModel(partial(classifiers.resnet_v1, depth=101), 44_695_144),
    "densenet169": ZooModel(partial(classifiers.densenet, depth=169), 14_307_880),
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
    """Check that a model has its published number of parameters.

    Raises
    ------
    VerificationError
        If it has another one.
    """
    found = parameter_count(zoo_model(name, 0, values=False))
    if found != ZOO[name].parameters:
        raise VerificationError(
            f"zoo model {name!r} has {found:,} parameters instead of {ZOO[name].parameters:,}"
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
    parser.add_argument("--json", action="store_true", help="as JSON, by name")
    given = parser.parse_args()
    with one_line_errors("zoo"):
        names = ZOO if given.all else given.models
        files = {name: str(written(name, given.output)) for name in names}
    print(json.dumps(files, indent=2) if given.json else "\n".join(files.values()))
