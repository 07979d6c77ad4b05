"""Kernels of Relax operators, lowered and run."""

from collections.abc import Callable

import numpy as np

from fewtune.runtime.target import resolve_target
from fewtune.runtime.tvm import compiled, relax, tvm

TARGET = resolve_target("auto", 2)


Shape = tuple[int, ...]


Build = Callable[..., relax.Expr]


def lowered(build: Build, *shapes: Shape, dtype: str = "float32") -> tvm.IRModule:
    """A Relax function of ``build`` over inputs of these shapes, lowered and fused."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{index}", relax.TensorType(shape, dtype)) for index, shape in enumerate(shapes)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(build(*inputs)))
        builder.emit_func_output(output)
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
    ]
    return tvm.transform.Sequential(passes)(builder.get())


def kernels(module: tvm.IRModule) -> list[tvm.IRModule]:
    return [
        tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        for _, function in module.functions_items()
        if isinstance(function, tvm.tirx.PrimFunc)
    ]


def run(kernel: tvm.IRModule, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    arguments = []
    for parameter in kernel["main"].params:
        shape = tuple(int(extent) for extent in parameter.shape)
        values = generator.uniform(-4, 4, shape).astype(str(parameter.dtype))
        arguments.append(tvm.runtime.tensor(values))
    compiled(kernel, target=TARGET)["main"](*arguments)
    return arguments[-1].numpy()


def convolution(layout: str, kernel: str, **options: object) -> Build:
    def build(data: relax.Expr, weight: relax.Expr, bias: relax.Expr) -> relax.Expr:
        result = relax.op.nn.conv2d(
            data, weight, data_layout=layout, kernel_layout=kernel, **options
        )
        return relax.op.nn.relu(relax.op.add(result, bias))

    return build


def pool(kind: str, layout: str, **options: object) -> Build:
    operator = getattr(relax.op.nn, f"{kind}_pool2d")
    return lambda data: operator(data, layout=layout, **options)
