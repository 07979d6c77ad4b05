"""Vectors for `exp`, `tanh` and the like, where LLVM would call the C library once an element.

TVM lowers ``exp``, ``tanh``, ``erf``, ``log`` and ``pow`` on a CPU to LLVM's intrinsics or to the C
library, for which LLVM has no vectors: a GELU takes longer than the matrix product before it.
Here each becomes a polynomial, or a quotient of two, so that the loop around it is vectorised like
any sum. float32 only: TVM lowers float64 and the rest as before.

The argument is brought into a short range first. Infinities and NaN give what the C library gives.
Polynomials: Cephes (Moshier, expf and logf); Eigen (tanh and erf, MathFunctionsImpl.h). Errors are
a few units in the last place (tests/runtime/test_vector_math.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from fewtune.tvm_compat.operators import lower_first
from fewtune.tvm_compat.start import tvm

_FLOAT = "float32"
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
# Beyond these, e to that power is infinite, or zero.
_LEAST_EXPONENT, _MOST_EXPONENT = -104.0, 89.0
_MANTISSA_BITS, _BIAS = 23, 127
_MANTISSA, _ONE_HALF = 0x007FFFFF, 0x3F000000
# Polynomials, the highest power first.
_EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_SQRT_HALF = 0.707106781186547524
_LEAST_NORMAL = 2.0**-126
# Odd polynomials over even ones; beyond the bound both functions are as good as one.
_TANH_BOUND = 7.90531110763549805
_TANH = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_UNDER = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
_ERF_BOUND = 4.0
_ERF = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_UNDER = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def exponential(x: Any) -> Any:
    """The exponential function: a power of two times a polynomial of what is left."""
    one = _like(x, 1.0)

    def scaled(bounded: Any, whole: Any) -> Any:
        steps = _cast(whole, "int32")
        rest = bounded - whole * _like(x, _LN2_HIGH) - whole * _like(x, _LN2_LOW)
        half = tvm.tirx.shift_right(steps, _like(steps, 1))
        # In two halves: together they reach the smallest numbers, and infinity.
        low, high = _power_of_two(half), _power_of_two(steps - half)
        return let(rest, lambda r: (_polynomial(_EXP, r) * r * r + r + one) * low * high)

    def raised(bounded: Any) -> Any:
        whole = tvm.tirx.floor(bounded * _like(x, _LOG2_E) + _like(x, 0.5))
        return let(whole, partial(scaled, bounded))

    bounded = tvm.tirx.min(tvm.tirx.max(x, _like(x, _LEAST_EXPONENT)), _like(x, _MOST_EXPONENT))
    return _unless_nan(x, let(bounded, raised))


def logarithm(x: Any) -> Any:
    """The natural logarithm: of the power of two and of what is left by themselves."""

    def of(value: Any) -> Any:
        # Numbers too small to be normal have their exponent in their mantissa.
        is_small = value < _like(x, _LEAST_NORMAL)
        scaled = tvm.tirx.Select(is_small, value * _like(x, 2.0**_MANTISSA_BITS), value)
        bits = tvm.tirx.reinterpret(_retyped(x, "int32"), scaled)
        steps = tvm.tirx.shift_right(bits, _like(bits, _MANTISSA_BITS))
        fewer = tvm.tirx.Select(is_small, _like(x, float(_MANTISSA_BITS)), _like(x, 0.0))
        whole = _cast(steps - _like(bits, _BIAS - 1), _FLOAT) - fewer
        # Of the number between a half and one that it is a power of two times.
        fraction = tvm.tirx.bitwise_and(bits, _like(bits, _MANTISSA))
        half = tvm.tirx.bitwise_or(fraction, _like(bits, _ONE_HALF))
        mantissa = tvm.tirx.reinterpret(type_of(x), half)
        return let(mantissa, lambda m: let(whole, lambda n: near_one(m, n)))

    def near_one(mantissa: Any, whole: Any) -> Any:
        is_low = mantissa < _like(x, _SQRT_HALF)
        rest = tvm.tirx.Select(is_low, mantissa + mantissa, mantissa) - _like(x, 1.0)
        steps = tvm.tirx.Select(is_low, whole - _like(x, 1.0), whole)
        return let(rest, lambda r: let(steps, lambda n: summed(r, n)))

    def summed(r: Any, n: Any) -> Any:
        low = _polynomial(_LOG, r) * r * r * r + n * _like(x, _LN2_LOW) - r * r * _like(x, 0.5)
        return r + low + n * _like(x, _LN2_HIGH)

    zero, infinite = _like(x, 0.0), _like(x, float("inf"))
    found = tvm.tirx.Select(x < infinite, let(x, of), x)
    found = tvm.tirx.Select(x > zero, found, _like(x, float("nan")))
    found = tvm.tirx.Select(tvm.tirx.EQ(x, zero), zero - infinite, found)
    return _unless_nan(x, found)


def power(x: Any, exponent: Any) -> Any | None:
    """``x`` to a constant power that takes few multiplications and roots; else None.

    0.75 is what local response normalisation divides by (AlexNet, GoogLeNet).
    """
    value, root = _constant(exponent), tvm.tirx.sqrt
    one, infinity = _like(x, 1.0), float("inf")
    known: dict[float, Callable[[], Any]] = {
        1.0: lambda: x,
        2.0: lambda: x * x,
        3.0: lambda: x * x * x,
        4.0: lambda: let(x * x, lambda square: square * square),
        0.25: lambda: _of_ends(x, root(root(x)), infinity),
        0.5: lambda: _of_ends(x, root(x), infinity),
        # A product of large numbers under a root would overflow.
        0.75: lambda: _of_ends(x, let(root(x), lambda first: first * root(first)), infinity),
        1.5: lambda: _of_ends(x, x * root(x), infinity),
        -0.5: lambda: _of_ends(x, one / root(x), 0.0),
        -1.0: lambda: one / x,
        -2.0: lambda: let(one / x, lambda inverse: inverse * inverse),
    }
    return known[value]() if value in known else None


def _of_ends(x: Any, power: Any, at_infinity: float) -> Any:
    """Correct a power made of roots as IEEE 754 asks: positive at -0, not NaN at -infinity."""
    is_end = tvm.tirx.EQ(x, _like(x, -float("inf")))
    return tvm.tirx.Select(is_end, _like(x, at_infinity), tvm.tirx.abs(power))


def _quotient(bound: float, over: Sequence[float], under: Sequence[float], x: Any) -> Any:
    """An odd polynomial over an even one, within the range where it is not one."""

    def of(value: Any) -> Any:
        return let(
            value * value,
            lambda square: value * _polynomial(over, square) / _polynomial(under, square),
        )

    most, one = _like(x, bound), _like(x, 1.0)
    found = let(tvm.tirx.min(tvm.tirx.max(x, -most), most), of)
    # Exactly one: GELU multiplies large numbers by one plus this. Near minus one, a rounding error
    # would be the whole result.
    found = tvm.tirx.Select(x >= most, one, tvm.tirx.Select(x <= -most, -one, found))
    return _unless_nan(x, found)


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Horner's rule, the highest power first."""
    result = _like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _like(x, coefficient)
    return result


def _power_of_two(exponent: Any) -> Any:
    bits = tvm.tirx.shift_left(exponent + _like(exponent, _BIAS), _like(exponent, _MANTISSA_BITS))
    return tvm.tirx.reinterpret(_retyped(exponent, _FLOAT), bits)


def _unless_nan(x: Any, value: Any) -> Any:
    return tvm.tirx.Select(tvm.tirx.EQ(x, x), value, x)


def let(value: Any, body: Callable[[Any], Any]) -> Any:
    """What a value is used for, the value computed once."""
    variable = tvm.tirx.Var("value", type_of(value))
    return tvm.tirx.Let(variable, value, body(variable))


def is_at_hand(value: Any) -> bool:
    """Whether naming a value again computes nothing: an element, a number or a variable."""
    inner = value.value if isinstance(value, tvm.tirx.Broadcast) else value
    return isinstance(inner, tvm.tirx.Var | tvm.tirx.FloatImm | tvm.ir.TensorLoad)


def type_of(x: Any) -> str:
    """The type of an expression, as ``float32x8``."""
    return str(x.ty)


def _retyped(x: Any, element: str) -> str:
    """A type of as many lanes."""
    lanes = tvm.DataType(type_of(x)).lanes
    return element if lanes == 1 else f"{element}x{lanes}"


def _like(x: Any, value: float) -> Any:
    """A constant of the type of an expression."""
    return tvm.tirx.const(value, type_of(x))


def _cast(x: Any, element: str) -> Any:
    return tvm.tirx.Cast(_retyped(x, element), x)


def _constant(x: Any) -> float | None:
    """The value of a constant, the same in all lanes; None for anything else."""
    inner = x.value if isinstance(x, tvm.tirx.Broadcast) else x
    return float(inner.value) if isinstance(inner, tvm.tirx.FloatImm) else None


# Kernels of this attribute keep the C library's functions (`left_to_library`).
LIBRARY_FUNCTIONS = "fewtune.library_functions"


def register() -> None:
    """Have TVM lower these functions so on CPUs, in this process."""

    def vectors_of(function: Callable[..., Any | None]) -> Callable[[Any], Any | None]:
        def lowered(call: Any) -> Any | None:
            kind = type_of(call)
            if not _Use.vectors or not kind.startswith(_FLOAT) or "vscale" in kind:
                return None
            argument, *others = call.args
            if is_at_hand(argument):
                return function(*call.args)
            # A function names its argument several times: of those that stand in each other, the
            # innermost would be written out as often as all of them multiplied.
            bound = tvm.tirx.Var("argument", type_of(argument))
            found = function(bound, *others)
            return None if found is None else tvm.tirx.Let(bound, argument, found)

        return lowered

    for name, function in (
        ("exp", exponential),
        ("log", logarithm),
        ("tanh", partial(_quotient, _TANH_BOUND, _TANH, _TANH_UNDER)),
        ("erf", partial(_quotient, _ERF_BOUND, _ERF, _ERF_UNDER)),
        ("pow", power),
    ):
        lower_first(name, vectors_of(function))
    # LLVM rounds vectors, too, but does not join single elements that TVM has unrolled.
    tvm.ir.register_op_attr("tirx.nearbyint", "TVectorizable", True)


def left_to_library(module: tvm.IRModule) -> tvm.IRModule:
    """Mark a module's kernels: they are to call the C library, as TVM has it."""
    marked = {
        name: function.with_attr(LIBRARY_FUNCTIONS, 1)
        if isinstance(function, tvm.tirx.PrimFunc)
        else function
        for name, function in module.functions.items()
    }
    return tvm.IRModule(marked, attrs=module.attrs, global_infos=module.global_infos)


@contextmanager
def as_marked(module: tvm.IRModule) -> Iterator[None]:
    """Within the block, what is compiled has the functions that a module is marked for."""
    before = _Use.vectors
    _Use.vectors = not any(
        function.attrs is not None and LIBRARY_FUNCTIONS in function.attrs
        for function in module.functions.values()
    )
    try:
        yield
    finally:
        _Use.vectors = before


class _Use:
    """Whether this process lowers functions to vectors now: the rules see calls alone."""

    vectors = True
