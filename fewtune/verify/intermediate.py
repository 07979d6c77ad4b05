"""Values between a model's operators that a library is checked against, and their noise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
from onnx import ModelProto, helper

from fewtune.errors import last_line
from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.onnx_graph.session import OnnxruntimeSession
from fewtune.verify.comparison import Expected, compare, compare_steps, is_byte, is_graded
from fewtune.verify.locate import MOST_COMPUTED, smallest, with_outputs
from fewtune.verify.noise import NoiseMeter, is_quantised, is_quantising
from fewtune.verify.taps import ROOM, Observable, Site, Tap, find_sites, written_by
from fewtune.verify.values import Value, known_values

# Most elements of all values that are stored: 64 MiB of float32. The largest are left out.
_MOST_STORED = 2**24
# Runs of a quantised library: when found values are restored, more are found behind them.
_MOST_PASSES = 6
# Most operators between two quantizations that onnxruntime fuses to one, such as Conv and Relu.
_MOST_FUSED = 3
# A tap, and what the untuned library writes there.
_Tapped = tuple[Tap, np.ndarray | None]


class IntermediateValues:
    """The values between a model's operators, on one draw of inputs.

    Those of ``bound``, the given model, are compared if it is quantized: simplification rewrites
    quantizing operators, on which noise depends. Otherwise those of the simplified model are
    compared. ``note`` tells the user how a quantized library's bytes compare, or why none are.
    """

    def __init__(
        self,
        bound: ModelProto | LightModel,
        simplified: ModelProto | LightModel,
        feeds: dict[str, np.ndarray],
        threads: int,
        seed: int,
    ) -> None:
        given = light(bound)
        self._is_quantised = is_quantised(given.model)
        self._model = given if self._is_quantised else light(simplified)
        self._feeds, self._threads, self._seed = feeds, threads, seed
        self._known = known_values(self._model.model)
        self._measured: dict[str, Expected] = {}
        self.note = ""
        # Before TVM has copies of weights, since onnxruntime makes one more while it loads them.
        with suppress(Exception):  # said when they are compared
            _ = self._values

    def taps(self, compiled: Observable, order: Sequence[str]) -> list[Tap]:
        """Find where a library writes values of the model, and measure their noise.

        ``compiled`` is the untuned library, whose outputs are right; ``order`` that of its inputs.
        Taps are in the order in which the values are written. There are none if onnxruntime cannot
        return intermediate values of this model.
        """
        try:
            inputs = [self._feeds[name] for name in order]
            sites: list[tuple[Site, str]] = []
            for _ in range(_MOST_PASSES if self._is_quantised else 1):
                count = len(sites)
                written = written_by(compiled, inputs, self._restored(sites))
                sites = find_sites(written, self._values)
                if len(sites) == count:
                    break
            kept = smallest({name: self._known[name] for _, name in sites}, _MOST_STORED)
            taps = self._with_noise([each for each in sites if each[1] in kept])
            arrays = {(each.kernel, each.call): each.array for each in written}
            values = [
                tap.site.value_of(arrays[tap.site.kernel, tap.site.call], tap.expected.values)
                for tap in taps
            ]
            judged = self._stepped if self._is_quantised else _without_doubles
            return judged(list(zip(taps, values, strict=True)))
        except Exception as fault:  # noqa: BLE001 (outputs are compared all the same)
            self.note = f"values inside the model are not compared: {last_line(fault)}"
            return []

    def _restored(self, sites: Sequence[tuple[Site, str]]) -> list[Tap]:
        """Taps of the sites of bytes; later kernels read the expected values."""
        return [
            Tap(site, Expected(name, self._values[name], np.zeros(0)), restored=True)
            for site, name in sites
            if is_byte(self._values[name].dtype)
        ]

    def _stepped(self, taps: Sequence[_Tapped]) -> list[Tap]:
        """Compare bytes by steps wherever the untuned library passes that comparison."""
        found, off, whole = [], 0, 0
        for tap, value in taps:
            if not is_byte(tap.expected.values.dtype) or value is None:
                found.append(tap)
                continue
            is_near = compare_steps(value, tap.expected).allowances <= 1
            found.append(tap._replace(restored=True, stepped=is_near))
            if is_near:
                off += int(np.count_nonzero(value != tap.expected.values))
                whole += value.size
        count = sum(tap.stepped for tap in found)
        others = sum(tap.restored for tap in found) - count
        if not count + others:
            return found
        self.note = (
            f"of equal inputs, {count} kernels give onnxruntime's bytes, "
            f"{off} of {whole} elements off by one, none by more"
            + (f"; {others} kernels that do not are compared by their noise" if others else "")
        )
        return found

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        """Intermediate values by name."""
        model = self._model.model
        produced = [name for node in model.graph.node for name in node.output]
        if self._is_quantised:
            # Sums of bytes move in few runs only, so their noise is not known. What is computed
            # from them is compared.
            graded = {name for name, each in self._known.items() if _is_graded(each)}
            produced = [name for name in safe_outputs(model) if name in graded]
        known = {name: self._known[name] for name in produced if name in self._known}
        names = smallest(known, MOST_COMPUTED)
        if not names:
            return {}
        session = OnnxruntimeSession(with_outputs(self._model, names, self._known), self._threads)
        values = map(np.asarray, session.run(self._feeds))
        return {name: _as_written(value) for name, value in zip(names, values, strict=True)}

    def _with_noise(self, sites: Sequence[tuple[Site, str]]) -> list[Tap]:
        names = list(dict.fromkeys(name for _, name in sites if name not in self._measured))
        if names:
            opened = with_outputs(self._model, names, self._known)
            values = [self._values[name] for name in names]
            for each in NoiseMeter(opened, self._threads).expected(self._feeds, values, self._seed):
                self._measured[each.name] = each
        return [Tap(site, self._measured[name]) for site, name in sites]


def _without_doubles(taps: Sequence[_Tapped]) -> list[Tap]:
    """Drop taps at which an almost equal value is written, if another kernel writes the value.

    A convolution with a small bias, for example, writes almost the same as the kernel after it.
    """
    wrong, right = [], set()
    for tap, value in taps:
        if value is not None and compare(value, tap.expected, ROOM).allowances <= 1:
            right.add(tap.expected.name)
        else:
            wrong.append(tap.site)
    return [tap for tap, _ in taps if tap.site not in wrong or tap.expected.name not in right]


def _is_graded(value: Value) -> bool:
    return is_graded(np.dtype(helper.tensor_dtype_to_np_dtype(value.element_type)))


def _as_written(values: np.ndarray) -> np.ndarray:
    """Signed bytes as integer kernels write them: unsigned, 128 larger."""
    return values.view(np.uint8) ^ np.uint8(128) if values.dtype == np.int8 else values


def safe_outputs(model: ModelProto) -> list[str]:
    """Values that can be outputs while onnxruntime still computes in integers.

    If the floats between a dequantization and a quantization are outputs, onnxruntime computes in
    floats, which round otherwise: twenty layers later, a tenth of all bytes differ.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    hidden: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            hidden.update(node.output)
        names = list(node.input[:1]) if node.op_type == "QuantizeLinear" else []
        for _ in range(_MOST_FUSED):
            fused = [producers[name] for name in names if name in producers]
            fused = [each for each in fused if not is_quantising(each)]
            hidden.update(name for each in fused for name in each.output)
            names = [name for each in fused for name in each.input]
    return [name for node in model.graph.node for name in node.output if name not in hidden]
