"""Refuses models that do not fit this machine's memory, before anything is allocated."""

from __future__ import annotations

import math
import os

from onnx import ModelProto, helper

from fewtune.errors import MachineError
from fewtune.onnx_graph.graph import static_shape

_GIGABYTE = 1e9


def refuse_beyond_memory(model: ModelProto, memory_bytes: int | None = None) -> None:
    """Refuse a model with a tensor that takes more than half of the memory.

    The node that computes a tensor reads another one, and onnxruntime runs beside TVM.

    Parameters
    ----------
    model : ModelProto
        With shapes as far as they are known.
    memory_bytes : int, optional
        The memory; that of this machine unless given.

    Raises
    ------
    MachineError
        Naming the largest tensor, its shape, and the node that computes it.
    """
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    largest, name, shape = 0, "", []
    for value in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        found = static_shape(value)
        if found is None:
            continue
        try:
            kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        except (KeyError, ValueError):
            continue
        size = math.prod(found) * kind.itemsize
        if size > largest:
            largest, name, shape = size, value.name, found
    if largest <= memory_bytes / 2:
        return
    node = next((node for node in model.graph.node if name in node.output), None)
    role = "an input of the model" if node is None else f"what {node.op_type} ({node.name!r}) gives"
    raise MachineError(
        f"tensor {name!r}, {role}, has the shape {'x'.join(map(str, shape))} and takes "
        f"{largest / _GIGABYTE:.3g} GB; this machine has {memory_bytes / _GIGABYTE:.3g} GB of "
        "memory: give smaller shapes, or run it on a machine with more"
    )
