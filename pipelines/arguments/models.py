"""Options of the commands that take a model: `check`, `add`, `compile`."""

from __future__ import annotations

import argparse

from pipelines.arguments.common import CODES, command_parser, input_options, shape_options


def add_check(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune check`."""
    command = command_parser(
        commands,
        "check",
        "pipelines.commands.models:check",
        help="say what a run would make of a model, without registering it",
        description="Import a model, compare its untuned outputs with onnxruntime's, and list its "
        "tasks, what would be tuned, options left out, and an estimate of the time.",
        epilog="examples:\n"
        "  fewtune check detector.onnx\n"
        "  fewtune check bert.onnx --dimension batch=1 --dimension sequence=128\n"
        "  fewtune check voice.onnx --constant sr=16000 --inputs sample.npz --json\n\n" + CODES,
    )
    command.add_argument(
        "source",
        metavar="MODEL",
        help="path of an .onnx file, a registered name, or light:NAME",
    )
    shape_options(command)
    input_options(command)
    command.add_argument("--seed", type=int, default=0, help="of the weights of a light: model")
    command.add_argument("--json", action="store_true", help="as JSON on standard output")


def add_add(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune add`."""
    command = command_parser(
        commands,
        "add",
        "pipelines.commands.models:add",
        help="register an ONNX model under a name",
        description="Check an ONNX model, copy it under models/ and list it in params.yaml.",
        epilog="examples:\n"
        "  fewtune add ~/models/detector.onnx\n"
        "  fewtune add bert.onnx --shape input_ids=1,128 --shape attention_mask=1,128\n"
        "  fewtune add light:resnet50 --name resnet50 --seed 1\n",
    )
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="path of an .onnx file, or light:NAME for an architecture of the onnx package",
    )
    command.add_argument("--name", help="a plain name; the file's unless given")
    shape_options(command)
    input_options(command)
    command.add_argument(
        "--no-check",
        action="store_true",
        help="register without importing it and comparing its outputs, which a run does anyway",
    )
    command.add_argument("--seed", type=int, default=0, help="of the weights of a light: model")
    command.add_argument(
        "--replace", action="store_true", help="replace another model of that name"
    )


def add_compile(commands: argparse._SubParsersAction) -> None:
    """Add `fewtune compile`."""
    command = command_parser(
        commands,
        "compile",
        "pipelines.commands.models:compile",
        help="compile a model for a GPU that is not here, without tuning",
        description="Import a model, check it on this machine's CPU beside onnxruntime, schedule "
        "its kernels by rule, and write a library with machine code for the architecture named. "
        "Needs NVIDIA's compiler: pip install 'fewtune[cuda]'. Nothing is run on a GPU.",
        epilog="examples:\n"
        "  fewtune compile squeezenet --target cuda --arch sm_90\n"
        "  fewtune compile model.onnx --shape x=1,3,64,64 --target cuda --output gpu\n\n" + CODES,
    )
    command.add_argument("model", metavar="MODEL", help="a registered name or an .onnx file")
    command.add_argument("--target", choices=["cuda"], default="cuda")
    command.add_argument("--arch", default="sm_90", help="of the GPU (default sm_90)")
    command.add_argument(
        "--output", metavar="DIR", help="gets model.so (default out/MODEL/cuda-ARCH)"
    )
    shape_options(command)
