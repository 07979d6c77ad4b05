"""Values between a model's operators that a library is checked against, and their noise."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto, helper

from fewtune.onnx_graph.external_data import LightModel, light
from fewtune.verify.comparison import Expected, compare, compare_steps, is_byte, is_graded
from fewtune.verify.jitter.transforms import has_transforms
from fewtune.verify.locate import with_outputs
from fewtune.verify.noise import NoiseMeter
from fewtune.verify.quantised import as_signed, as_unsigned, is_quantised, safe_outputs
from fewtune.verify.session import OnnxruntimeSession
from fewtune.verify.sites import Site, Written, find_sites
from fewtune.verify.taps import ROOM, Observable, Tap, written_by
from fewtune.verify.values import Value, known_values

# Most elements of all values that are computed, and of those that are stored: 512 and 64 MiB of
# float32. The largest values are left out.
_MOST_COMPUTED, _MOST_STORED = 2**27, 2**24
# Runs of a quantised library: when found values are restored, more are found behind them.
_MOST_PASSES = 6
_LOG = logging.getLogger(__name__)


class IntermediateValues:
    """The values between a model's operators, on one draw of inputs.

    Parameters
    ----------
    bound : ModelProto or LightModel
        The given model with static shapes.
    simplified : ModelProto or LightModel
        The simplified model. If a name is in both, the value of ``bound`` is expected. It is not
        used for quantised models.
    feeds : dict of arrays
    threads : int
        Threads of onnxruntime.
    seed : int
        Seed of the noise.

    Attributes
    ----------
    note : str
        For the user, on how a quantised library's bytes compare; else empty.
    """

    def __init__(
        self,
        bound: ModelProto | LightModel,
        simplified: ModelProto | LightModel,
        feeds: dict[str, np.ndarray],
        threads: int,
        seed: int,
    ) -> None:
        # Simplification rewrites quantising operators and Fourier transforms, whose noise depends
        # on the operator.
        self._bound = light(bound)
        self._is_quantised = is_quantised(self._bound.model)
        is_kept = self._is_quantised or has_transforms(self._bound.model)
        self._simplified = self._bound if is_kept else light(simplified)
        self._feeds, self._threads, self._seed = feeds, threads, seed
        self._known = known_values(self._simplified.model)
        self._values: dict[str, np.ndarray] | None = None
        self._measured: dict[str, Expected] = {}
        # Names of int8 values, which are stored as integer kernels write them, with 128 added.
        self._signed: set[str] = set()
        self.note = ""

    def taps(self, compiled: Observable, order: Sequence[str]) -> list[Tap]:
        """Find where a library writes values of the model, and measure their noise.

        Parameters
        ----------
        compiled : Observable
            The untuned library, whose outputs are right.
        order : sequence of str
            Order of its inputs.

        Returns
        -------
        taps : list of Tap
            In the order in which the values are written; empty if onnxruntime cannot return
            intermediate values of this model.
        """
        try:
            if self._values is None:
                self._values = self._computed()
            inputs = [self._feeds[name] for name in order]
            written = written_by(compiled, inputs)
            sites = find_sites(written, self._values)
            for _ in range(_MOST_PASSES if self._is_quantised else 0):
                count = len(sites)
                written = written_by(compiled, inputs, self._restored(sites))
                sites = find_sites(written, self._values)
                if len(sites) == count:
                    break
            kept = _smallest({name: self._known[name] for _, name in sites}, _MOST_STORED)
            taps = self._with_noise([each for each in sites if each[1] in kept])
            if self._is_quantised:
                return self._stepped(taps, written)
            return _without_doubles(taps, written)
        except Exception as fault:  # noqa: BLE001 (outputs are compared all the same)
            _LOG.warning("values inside the model are not compared: %s", fault)
            return []

    def _restored(self, sites: Sequence[tuple[Site, str]]) -> list[Tap]:
        """Taps of the sites of bytes; later kernels read the expected values."""
        assert self._values is not None
        expected = [
            (site, Expected(name, self._values[name], np.zeros(0, "f4"))) for site, name in sites
        ]
        return [Tap(site, each, True) for site, each in expected if is_byte(each.values.dtype)]

    def _stepped(self, taps: list[Tap], written: Sequence[Written]) -> list[Tap]:
        """Compare bytes by steps wherever the untuned library passes that comparison."""
        arrays = {(each.kernel, each.call): each.array for each in written}
        found, off, whole = [], 0, 0
        for tap in taps:
            value = tap.site.value_of(arrays[tap.site.kernel, tap.site.call], tap.expected.values)
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

    def _computed(self) -> dict[str, np.ndarray]:
        """Intermediate values by name; those of the given model if it has the name."""
        model = self._simplified.model
        produced = [name for node in model.graph.node for name in node.output]
        produced = safe_outputs(model) if self._is_quantised else produced
        produced = [name for name in produced if name in self._known]
        if self._is_quantised:
            # Sums of bytes move in few runs only, so their noise is not known. What is computed
            # from them is compared.
            produced = [name for name in produced if is_graded(self._dtype(name))]
        names = _smallest({name: self._known[name] for name in produced}, _MOST_COMPUTED)
        values = self._run(self._simplified, names)
        if self._is_quantised:
            self._signed = {name for name, value in values.items() if value.dtype == np.int8}
            return values | {name: as_unsigned(values[name]) for name in self._signed}
        given = {name for node in self._bound.model.graph.node for name in node.output}
        shared = [name for name in names if name in given]
        try:
            theirs = self._run(self._bound, shared)
        except Exception:  # noqa: BLE001 (a name may mean something else there)
            return values
        return values | {n: v for n, v in theirs.items() if _same(v, values[n])}

    def _dtype(self, name: str) -> np.dtype:
        return np.dtype(helper.tensor_dtype_to_np_dtype(self._known[name].element_type))

    def _run(self, model: LightModel, names: Sequence[str]) -> dict[str, np.ndarray]:
        if not names:
            return {}
        session = OnnxruntimeSession(with_outputs(model, names, self._known), self._threads)
        outputs = map(np.asarray, session.run(self._feeds))
        return dict(zip(names, outputs, strict=True))

    def _with_noise(self, sites: Sequence[tuple[Site, str]]) -> list[Tap]:
        assert self._values is not None
        names = list(dict.fromkeys(name for _, name in sites if name not in self._measured))
        if names:
            opened = with_outputs(self._simplified, names, self._known)
            meter = NoiseMeter(opened, self._threads, {})
            values = [
                as_signed(self._values[n]) if n in self._signed else self._values[n] for n in names
            ]
            for each in meter.expected(self._feeds, values, [], self._seed):
                self._measured[each.name] = replace(each, values=self._values[each.name])
        return [Tap(site, self._measured[name]) for site, name in sites]


def _without_doubles(taps: list[Tap], written: Sequence[Written]) -> list[Tap]:
    """Drop taps at which an almost equal value is written, if another kernel writes the value.

    A convolution with a small bias, for example, writes almost the same as the kernel after it.
    """
    arrays = {(each.kernel, each.call): each.array for each in written}
    wrong, right = [], set()
    for tap in taps:
        value = tap.site.value_of(arrays[tap.site.kernel, tap.site.call], tap.expected.values)
        if value is not None and compare(value, tap.expected, ROOM).allowances <= 1:
            right.add(tap.expected.name)
        else:
            wrong.append(tap.site)
    return [tap for tap in taps if tap.site not in wrong or tap.expected.name not in right]


def _smallest(values: Mapping[str, Value], most: int) -> list[str]:
    """The smallest values that fit ``most`` elements, in the given order."""
    sizes = {name: int(np.prod(value.shape)) for name, value in values.items()}
    taken, left = set(), most
    for name in sorted(sizes, key=lambda each: sizes[each]):
        if sizes[name] > left:
            break
        taken.add(name)
        left -= sizes[name]
    return [name for name in values if name in taken]


def _same(given: np.ndarray, simplified: np.ndarray) -> bool:
    """Whether a name means the same value in both models."""
    if given.shape != simplified.shape or given.dtype != simplified.dtype:
        return False
    if given.dtype.kind != "f":
        return bool(np.mean(given == simplified) > 0.95) if given.size else True
    away = 0.01 * _scale(given)
    return np.allclose(given, simplified, rtol=0.01, atol=away, equal_nan=True)


def _scale(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(finite.mean()) if finite.size else 0.0
