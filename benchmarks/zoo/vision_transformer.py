"""ViT-Tiny: 1x3x224x224 images to 1000 logits.

Dosovitskiy et al., 2020, "An Image is Worth 16x16 Words", in the size that Touvron et al., 2020,
"Training data-efficient image transformers", call DeiT-Ti. The nodes are those that PyTorch exports
for timm's ``vit_tiny_patch16_224``, in which one product gives queries, keys and values.
"""

from __future__ import annotations

import numpy as np

from benchmarks.zoo.builder import GraphBuilder, normal

_IMAGE, _PATCH, _CLASSES = 224, 16, 1000
_LAYERS, _WIDTH, _HEADS = 12, 192, 3
_PATCHES = (_IMAGE // _PATCH) ** 2
_TOKENS = 1 + _PATCHES
_EPSILON = 1e-6
_EMBEDDING_SCALE = 0.02


def vit_tiny(builder: GraphBuilder) -> None:
    """Add ViT-Tiny."""
    value = _embedded(builder, builder.input("image", (1, 3, _IMAGE, _IMAGE)))
    for layer in range(1, _LAYERS + 1):
        name = f"layer{layer}"
        inner = builder.layer_normalization(value, f"{name}_attention_normalization", _EPSILON)
        inner = _attention(builder, inner, f"{name}_attention")
        value = builder.node("Add", [value, inner], f"{name}_attended")
        inner = builder.layer_normalization(value, f"{name}_normalization", _EPSILON)
        inner = builder.linear(inner, f"{name}_inner", 4 * _WIDTH)
        inner = builder.linear(builder.gelu(inner, f"{name}_gelu"), f"{name}_outer", _WIDTH)
        value = builder.node("Add", [value, inner], f"{name}_sum")
    value = builder.layer_normalization(value, "last_normalization", _EPSILON)
    first = builder.slice(value, "first_token", 0, 1, axis=1)
    first = builder.reshape(first, "first_row", 1, _WIDTH)
    builder.output(builder.dense(first, "logits", _CLASSES), (1, _CLASSES))


def _embedded(builder: GraphBuilder, image: str) -> str:
    """Turn an image into tokens: a first one for the classifier, then one for each patch."""
    draw = normal(_EMBEDDING_SCALE)
    value = builder.convolution(image, "patches", _WIDTH, _PATCH, _PATCH, padding=0, bias=True)
    value = builder.reshape(value, "patches_in_a_row", 1, _WIDTH, _PATCHES)
    value = builder.transpose(value, "patches_by_token", 0, 2, 1)
    first = builder.weight("class_token", (1, 1, _WIDTH), draw)
    value = builder.node("Concat", [first, value], "tokens", _WIDTH, axis=1)
    places = builder.weight("position_embeddings", (1, _TOKENS, _WIDTH), draw)
    return builder.node("Add", [value, places], "embeddings")


def _attention(builder: GraphBuilder, value: str, name: str) -> str:
    """Add attention with several heads, up to its output projection."""
    size = _WIDTH // _HEADS
    joint = builder.linear(value, f"{name}_joint", 3 * _WIDTH)
    joint = builder.reshape(joint, f"{name}_split", 1, _TOKENS, 3, _HEADS, size)
    joint = builder.transpose(joint, f"{name}_heads", 2, 0, 3, 1, 4)
    query, key, mixed = (
        builder.node(
            "Gather",
            [joint, builder.constant(f"{name}_{part}_place", np.array(place, np.int64))],
            f"{name}_{part}",
            axis=0,
        )
        for place, part in enumerate(("query", "key", "value"))
    )
    query = builder.node("Mul", [query, builder.constant(f"{name}_scale", size**-0.5)], f"{name}_q")
    key = builder.transpose(key, f"{name}_key_by_place", 0, 1, 3, 2)
    scores = builder.node("MatMul", [query, key], f"{name}_scores")
    weights = builder.node("Softmax", [scores], f"{name}_weights", axis=3)
    mixed = builder.node("MatMul", [weights, mixed], f"{name}_mixed", _WIDTH)
    mixed = builder.transpose(mixed, f"{name}_mixed_by_token", 0, 2, 1, 3)
    mixed = builder.reshape(mixed, f"{name}_joined", 1, _TOKENS, _WIDTH)
    return builder.linear(mixed, f"{name}_output", _WIDTH)
