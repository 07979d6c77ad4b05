"""BERT-Mini: a transformer encoder of four layers over 128 tokens.

The architecture is that of Devlin et al., 2018, "BERT", in the size L=4, H=256, A=4 of Turc et al.,
2019, "Well-Read Students Learn Better", without the heads for pre-training.
"""

from __future__ import annotations

from onnx import TensorProto

from benchmarks.zoo.builder import GraphBuilder, normal

_TOKENS = 128
_LAYERS, _WIDTH, _HEADS, _INNER = 4, 256, 4, 1024
_VOCABULARY, _POSITIONS, _TYPES = 30522, 512, 2
_EMBEDDING_SCALE = 0.02
_EPSILON = 1e-12

# Large enough to take a masked token out of a softmax.
_PENALTY = 10000.0


def bert_mini(builder: GraphBuilder) -> None:
    """Add BERT-Mini; outputs are ``hidden``, 1 x 128 x 256, and ``pooled``, 1 x 256."""
    shape = (1, _TOKENS)
    tokens = builder.input("input_ids", shape, TensorProto.INT64)
    mask = builder.input("attention_mask", shape, TensorProto.INT64)
    types = builder.input("token_type_ids", shape, TensorProto.INT64)
    value = _embedded(builder, tokens, types)
    penalty = _mask_penalty(builder, mask)
    for layer in range(1, _LAYERS + 1):
        name = f"layer{layer}"
        attended = _attention(builder, value, penalty, f"{name}_attention")
        value = builder.node("Add", [value, attended], f"{name}_attended")
        value = builder.layer_normalization(value, f"{name}_attended_normalization", _EPSILON)
        inner = builder.linear(value, f"{name}_inner", _INNER)
        inner = builder.linear(builder.gelu(inner, f"{name}_gelu"), f"{name}_outer", _WIDTH)
        value = builder.node("Add", [value, inner], f"{name}_sum")
        last = "hidden" if layer == _LAYERS else f"{name}_normalization"
        value = builder.layer_normalization(value, last, _EPSILON)
    builder.output(value, (1, _TOKENS, _WIDTH))
    first = builder.slice(value, "first_token", 0, 1, axis=1)
    first = builder.reshape(first, "first_row", 1, _WIDTH)
    pooled = builder.node("Tanh", [builder.dense(first, "pooler", _WIDTH)], "pooled")
    builder.output(pooled, (1, _WIDTH))


def _embedded(builder: GraphBuilder, tokens: str, types: str) -> str:
    """Sum the embeddings of tokens, positions and sentences, then normalise."""
    draw = normal(_EMBEDDING_SCALE)
    words = builder.weight("word_embeddings", (_VOCABULARY, _WIDTH), draw)
    sentences = builder.weight("type_embeddings", (_TYPES, _WIDTH), draw)
    places = builder.weight("position_embeddings", (_POSITIONS, _WIDTH), draw)
    value = builder.node("Gather", [words, tokens], "words", _WIDTH)
    sentence = builder.node("Gather", [sentences, types], "sentences", _WIDTH)
    value = builder.node("Add", [value, sentence], "words_and_sentences")
    place = builder.slice(places, "places", 0, _TOKENS, axis=0)
    value = builder.node("Add", [value, place], "embeddings")
    return builder.layer_normalization(value, "embeddings_normalization", _EPSILON)


def _mask_penalty(builder: GraphBuilder, mask: str) -> str:
    """Bias of the scores from a mask, which is 1 for tokens to read and 0 for others."""
    value = builder.node("Cast", [mask], "mask", to=TensorProto.FLOAT)
    value = builder.reshape(value, "mask_row", 1, 1, 1, _TOKENS)
    value = builder.node("Sub", [value, builder.constant("unmasked", 1.0)], "mask_from_one")
    return builder.node("Mul", [value, builder.constant("penalty", _PENALTY)], "mask_penalty")


def _attention(builder: GraphBuilder, value: str, penalty: str, name: str) -> str:
    """Add attention with several heads, up to its output projection."""
    size = _WIDTH // _HEADS
    heads = {}
    # The keys' transpose also swaps the axes for the product, which so needs no other transpose.
    for part, order in {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}.items():
        projected = builder.linear(value, f"{name}_{part}", _WIDTH)
        split = builder.reshape(projected, f"{name}_{part}_split", 1, _TOKENS, _HEADS, size)
        heads[part] = builder.transpose(split, f"{name}_{part}_heads", *order)
    scores = builder.node("MatMul", [heads["query"], heads["key"]], f"{name}_products")
    scale = builder.constant(f"{name}_scale", size**-0.5)
    scores = builder.node("Mul", [scores, scale], f"{name}_scores")
    scores = builder.node("Add", [scores, penalty], f"{name}_masked")
    weights = builder.node("Softmax", [scores], f"{name}_weights", axis=3)
    mixed = builder.node("MatMul", [weights, heads["value"]], f"{name}_mixed", _WIDTH)
    mixed = builder.transpose(mixed, f"{name}_mixed_by_token", 0, 2, 1, 3)
    mixed = builder.reshape(mixed, f"{name}_joined", 1, _TOKENS, _WIDTH)
    return builder.linear(mixed, f"{name}_output", _WIDTH)
