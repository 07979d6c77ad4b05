"""All converters, by operator.

A converter takes the builder, inputs, attributes and operator set of a node. It returns the
expression of the result, or None, which leaves the node to TVM's own converter. Constants among the
inputs are known to it.
"""

from __future__ import annotations

from functools import partial

from fewtune.model.converters import elementwise, recurrent, resize, suppression
from fewtune.process.optional_steps import OptionalSteps
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.tvm import relax
from fewtune.tvm_compat.onnx_importer import Converter

LAYOUT_FRIENDLY = "layout_friendly"
# TVM imports these as opaque kernels, as a stack and a reduction, or as operators without a layout
# rule: in NHWC, each gets transposes around it.
_FRIENDLY: dict[str, Converter] = {
    "Clip": elementwise.clip,
    "Gather": elementwise.gather,
    "HardSigmoid": elementwise.hard_sigmoid,
    "LeakyRelu": elementwise.leaky_relu,
    "Max": partial(elementwise.paired, relax.op.maximum),
    "Min": partial(elementwise.paired, relax.op.minimum),
}
# TVM gets these wrong, or lacks them.
_NEEDED: dict[str, Converter] = {
    "ArgMax": partial(elementwise.index_of, relax.op.argmax),
    "ArgMin": partial(elementwise.index_of, relax.op.argmin),
    "BitShift": elementwise.bit_shift,
    "Cast": elementwise.cast,
    "ConvInteger": elementwise.integer_convolution,
    "MatMulInteger": elementwise.integer_product,
    "NonMaxSuppression": suppression.converted,
    "Resize": resize.converted,
    "Upsample": resize.converted,
}


def converters(traits: CpuTraits | None, steps: OptionalSteps) -> dict[str, Converter]:
    """Converters by operator.

    Parameters
    ----------
    traits : CpuTraits or None
        Of the processor that recurrent layers run on; without it, these have no converters.
    steps : OptionalSteps
        Without step ``layout_friendly``, TVM's own converters take the place of some.
    """
    friendly = {
        name: steps.guarded(LAYOUT_FRIENDLY, converter, lambda *_: None)
        for name, converter in _FRIENDLY.items()
    }
    return friendly | _NEEDED | ({} if traits is None else recurrent.converters(traits))
