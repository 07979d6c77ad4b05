"""ConvNeXt-Tiny: 1x3x224x224 images to 1000 logits.

Liu et al., 2022, "A ConvNet for the 2020s", with the layers in the order of torchvision's
``convnext_tiny``. Convolutions are NCHW. Normalisations and the two linear layers of a block have
channels last, between two transposes.
"""

from __future__ import annotations

from benchmarks.zoo.builder import GraphBuilder

_CLASSES = 1000
_STAGES = ((3, 96), (3, 192), (9, 384), (3, 768))
_EPSILON = 1e-6
_CHANNELS_LAST, _CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def convnext_tiny(builder: GraphBuilder) -> None:
    """Add ConvNeXt-Tiny."""
    value = builder.input("image", (1, 3, 224, 224))
    for stage, (blocks, channels) in enumerate(_STAGES, start=1):
        kernel = 4 if stage == 1 else 2
        if stage > 1:
            value = _normalized(builder, value, f"stage{stage}_normalization")
        value = builder.convolution(
            value, f"stage{stage}_reduction", channels, kernel, stride=kernel, padding=0, bias=True
        )
        if stage == 1:
            value = _normalized(builder, value, "stem_normalization")
        for block in range(1, blocks + 1):
            value = _block(builder, value, f"stage{stage}_block{block}")
    value = builder.global_average(value, "average")
    value = builder.layer_normalization(value, "last_normalization", _EPSILON)
    builder.output(builder.dense(value, "logits", _CLASSES), (1, _CLASSES))


def _normalized(builder: GraphBuilder, value: str, name: str) -> str:
    value = builder.transpose(value, f"{name}_channels_last", *_CHANNELS_LAST)
    value = builder.layer_normalization(value, name, _EPSILON)
    return builder.transpose(value, f"{name}_channels_first", *_CHANNELS_FIRST)


def _block(builder: GraphBuilder, value: str, name: str) -> str:
    """Add a 7x7 depthwise convolution, two linear layers with a GELU between, and a shortcut."""
    channels = builder.channels(value)
    inner = builder.convolution(
        value, f"{name}_depthwise", channels, kernel=7, groups=channels, bias=True
    )
    inner = builder.transpose(inner, f"{name}_channels_last", *_CHANNELS_LAST)
    inner = builder.layer_normalization(inner, f"{name}_normalization", _EPSILON)
    inner = builder.linear(inner, f"{name}_expand", 4 * channels)
    inner = builder.linear(builder.gelu(inner, f"{name}_gelu"), f"{name}_reduce", channels)
    inner = builder.layer_scale(inner, f"{name}_layer_scale")
    inner = builder.transpose(inner, f"{name}_channels_first", *_CHANNELS_FIRST)
    return builder.node("Add", [value, inner], f"{name}_sum")
