"""Products of matrices and convolutions: of numbers in words of 32 bits, with a permuted bias."""

from tvm import topi

from fewtune.runtime.tvm import te, tvm


def convolution(
    size,
    channels,
    filters,
    kernel=3,
    stride=1,
    *,
    tail="relu",
    pad=True,
    dtype="float32",
    sums=None,
):
    """The module of a convolution in NHWC, with a bias and what follows it."""
    sums = sums or dtype
    data = te.placeholder((1, size, size, channels), dtype, "data")
    weight = te.placeholder((kernel, kernel, channels, filters), dtype, "weight")
    arguments = [data, weight]
    padding = kernel // 2 if pad else 0
    out = topi.nn.conv2d_nhwc(data, weight, stride, padding, 1, out_dtype=sums)
    if tail != "none":
        arguments.append(te.placeholder((1, 1, 1, filters), sums, "bias"))
        out = topi.add(out, arguments[-1])
    if tail == "residual":
        arguments.append(te.placeholder(out.shape, sums, "other"))
        out = topi.add(out, arguments[-1])
    function = te.create_prim_func([*arguments, out if tail == "none" else topi.nn.relu(out)])
    return tvm.IRModule({"main": function.with_attr("layout_free_buffers", [1])})


def matrix_product(rows, columns, depth):
    """The module of a product of two matrices."""
    left = te.placeholder((rows, depth), name="left")
    right = te.placeholder((depth, columns), name="right")
    k = te.reduce_axis((0, depth), name="k")
    made = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product"
    )
    return tvm.IRModule({"main": te.create_prim_func([left, right, made])})


def product_of_words(rows, words, columns, lanes, dot):
    """The product's module, its columns in vectors of so many lanes.

    Parameters
    ----------
    rows, words, columns, lanes : int
        ``words`` is the length of the sum.
    dot : callable
        The sum's term, of a word of the data and one of the weights.
    """
    data = te.placeholder((rows, words), "int32", name="data")
    weights = te.placeholder((words, columns), "int32", name="weights")
    k = te.reduce_axis((0, words), name="k")
    result = te.compute(
        (rows, columns),
        lambda i, j: te.sum(dot(data[i, k], weights[k, j]), axis=k),
        name="product",
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([data, weights, result]))
    block = schedule.get_sblock("product")
    row, column, depth = schedule.get_loops(block)
    outer, inner = schedule.split(column, [None, lanes])
    schedule.reorder(row, outer, depth, inner)
    if lanes > 1:
        schedule.vectorize(inner)
    schedule.decompose_reduction(block, depth)
    return schedule.mod


def product_with_permuted_bias():
    """A product whose bias is computed and permuted before it is added."""
    a = te.placeholder((32, 16), "int32", "a")
    b = te.placeholder((16, 64), "int32", "b")
    bias = te.placeholder((64,), "float32", "bias")
    k = te.reduce_axis((0, 16), "k")
    product = te.compute((32, 64), lambda i, j: te.sum(a[i, k] * b[k, j], k), "product")
    column = te.compute(
        (64, 1), lambda i, j: te.floor(bias[(i + j) % 64]).astype("int32"), "column"
    )
    row = te.compute((1, 64), lambda i, j: column[j, i], "row")
    result = te.compute((32, 64), lambda i, j: product[i, j] + row[0, j], "result")
    return tvm.IRModule({"main": te.create_prim_func([a, b, bias, result])})
