"""A scheduled product of two matrices whose numbers are packed in words of 32 bits."""

from fewtune.runtime.tvm import te, tvm


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
