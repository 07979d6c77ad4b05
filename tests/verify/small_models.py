"""Small models, one for each kind of output that a check can get wrong."""

import numpy as np
from onnx import ModelProto, TensorProto

from tests.made.onnx_text import model_of
from tests.tiny_models import random_weight


def classifier(dtype: type = np.float32) -> ModelProto:
    """Two convolutions with a batch normalisation, pooling, softmax."""
    generator = np.random.default_rng(0)
    model = model_of(
        """(float[1,3,12,12] x) => (float[1,10] y) {
            [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1)
            [norm] n = BatchNormalization (c1, scale, shift, mean, variance)
            [relu1] r1 = Relu (n)
            [conv2] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
            [relu2] r2 = Relu (c2)
            [pool] g = GlobalAveragePool (r2)
            [flat] f = Flatten (g)
            [dense] l = MatMul (f, dense)
            [softmax] y = Softmax (l)
        }""",
        w1=random_weight(generator, 8, 3, 3, 3, dtype=dtype),
        w2=random_weight(generator, 16, 8, 3, 3, dtype=dtype),
        scale=generator.uniform(0.5, 1.5, 8).astype(dtype),
        shift=(generator.standard_normal(8) * 0.1).astype(dtype),
        mean=(generator.standard_normal(8) * 0.1).astype(dtype),
        variance=generator.uniform(0.5, 1.5, 8).astype(dtype),
        dense=random_weight(generator, 16, 10, dtype=dtype),
    )
    if dtype == np.float16:
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def detector() -> ModelProto:
    """Boxes in pixels, and scores close to zero, in one output."""
    generator = np.random.default_rng(1)
    return model_of(
        """(float[1,3,8,8] x) => (float[1,10,8,8] y) {
            [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1)
            [relu1] r1 = Relu (c1)
            [head] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
            [split] b, s = Split <axis = 1> (c2, sizes)
            [scale] boxes = Mul (b, pixels)
            [shift] low = Add (s, bias)
            [sigmoid] scores = Sigmoid (low)
            [join] y = Concat <axis = 1> (boxes, scores)
        }""",
        w1=random_weight(generator, 8, 3, 3, 3),
        w2=random_weight(generator, 10, 8, 3, 3),
        pixels=np.float32(640),
        bias=np.float32(-9),
        sizes=[4, 6],
    )


def masked(fill: float) -> ModelProto:
    """Scores where a constant mask is true, ``fill`` elsewhere."""
    generator = np.random.default_rng(2)
    return model_of(
        """(float[1,3,8,8] x) => (float[1,5,8,8] y) {
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
            [mask] y = Where (mask, c, fill)
        }""",
        w=random_weight(generator, 5, 3, 3, 3),
        mask=generator.random((1, 1, 8, 8)) < 0.5,
        fill=np.float32(fill),
    )


def spectrogram() -> ModelProto:
    """A logarithm of the input."""
    return model_of(
        "(float[5,6] x) => (float[5,4] y) {[log] logs = Log (x) [dense] y = MatMul (logs, w)}",
        w=random_weight(np.random.default_rng(3), 6, 4),
    )


def segmenter() -> ModelProto:
    """The class of each pixel, as integers."""
    return model_of(
        """(float[1,3,16,16] x) => (int64[1,16,16] y) {
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
            [argmax] y = ArgMax <axis = 1, keepdims = 0> (c)
        }""",
        w=random_weight(np.random.default_rng(4), 6, 3, 3, 3),
    )


def quantised() -> ModelProto:
    """A convolution between quantised values."""
    return model_of(
        """(float[1,3,12,12] x) => (float[1,8,12,12] y) {
            [q_in] xq = QuantizeLinear (x, in_scale, zero)
            [d_in] xd = DequantizeLinear (xq, in_scale, zero)
            [conv] c = Conv <pads = [1, 1, 1, 1]> (xd, w)
            [q_out] yq = QuantizeLinear (c, out_scale, zero)
            [d_out] y = DequantizeLinear (yq, out_scale, zero)
        }""",
        w=random_weight(np.random.default_rng(5), 8, 3, 3, 3),
        in_scale=np.float32(0.03),
        out_scale=np.float32(0.05),
        zero=np.int8(0),
    )


def embedding() -> ModelProto:
    """Token ids that read a table of 50 rows, and a mask."""
    generator = np.random.default_rng(6)
    return model_of(
        """(int64[2,8] ids, int64[2,8] mask) => (float[2,8,16] y) {
            [read] rows = Gather (table, ids)
            [dense] values = MatMul (rows, w)
            [cast] kept = Cast <to = 1> (mask)
            [column] column = Unsqueeze (kept, last)
            [masked] y = Mul (values, column)
        }""",
        table=random_weight(generator, 50, 16),
        w=random_weight(generator, 16, 16),
        last=[2],
    )


def gated() -> ModelProto:
    """A gate deep inside, whose bias hides its input."""
    generator = np.random.default_rng(7)
    return model_of(
        """(float[1,3,16,16] x) => (float[1,10,16,16] y) {
            [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1)
            [pool] mean = GlobalAveragePool (c1)
            [squeeze] s = Conv (mean, squeeze, squeeze_bias)
            [relu] r = Relu (s)
            [excite] e = Conv (r, excite, excite_bias)
            [sigmoid] gate = Sigmoid (e)
            [gating] g = Mul (c1, gate)
            [conv2] y = Conv (g, w2)
        }""",
        w1=random_weight(generator, 16, 3, 3, 3),
        squeeze=random_weight(generator, 8, 16, 1, 1) * np.float32(1e-3),
        squeeze_bias=np.full(8, 2, np.float32),
        excite=random_weight(generator, 16, 8, 1, 1) * np.float32(1e-3),
        excite_bias=np.full(16, 8, np.float32),
        w2=random_weight(generator, 10, 16, 1, 1),
    )


def masked_rows() -> ModelProto:
    """A softmax of rows of which some are masked as a whole: NaN for all inputs."""
    kept = np.ones((8, 1), bool)
    kept[[2, 5]] = False
    return model_of(
        """(float[8,16] x) => (float[8,8] y) {
            [dense] scores = MatMul (x, w)
            [mask] masked = Where (kept, scores, fill)
            [softmax] y = Softmax (masked)
        }""",
        w=random_weight(np.random.default_rng(8), 16, 8),
        kept=kept,
        fill=np.float32(-np.inf),
    )


def clipped() -> ModelProto:
    """Sums of thousands of elements behind ReLU, many of them close to zero."""
    return model_of(
        "(float[64,2048] x) => (float[64,512] y) {sums = MatMul (x, w) y = Relu (sums)}",
        w=random_weight(np.random.default_rng(9), 2048, 512),
    )
