"""One kernel for all steps of a recurrent layer; its threads start once."""

# ruff: noqa: ANN001, ANN202, B023 (of the macros, which are TVMScript: they are parsed, not run)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from tvm.script import tirx as T  # noqa: N812 (TVMScript's own name, which its parser expects)

from fewtune.model.passes.op_patterns import OPAQUE
from fewtune.model.passes.tvmscript.recurrent_steps import (
    CELLS,
    RESETS_FIRST,
    multiplication,
    quantisation,
)
from fewtune.model.passes.tvmscript.recurrent_threads import shared_by
from fewtune.runtime.cpu_traits import CpuTraits
from fewtune.runtime.executable import IS_SCHEDULED
from fewtune.runtime.tvm import tvm

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Attributes of TVM's code generator for CPUs: start all threads once for a statement, and let
# threads wait for each other after one.
_LAUNCH, _BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"
# The code generator ignores an attribute of this name.
_IGNORED = "fewtune.as_it_is"


class Recurrence(NamedTuple):
    """A recurrent layer with ONNX's default activations.

    Attributes
    ----------
    kind : {"LSTM", "GRU", "RNN"}
    steps, batch, directions : int
    hidden : int
        Values of a state, padded to whole vectors.
    is_reverse : bool
        Whether the only direction begins with the last step.
    resets_first : bool
        Whether a GRU resets the state before it is multiplied (ONNX's ``linear_before_reset`` is
        0). Then a step has two products, one after the other.
    weight_dtype : str
        Of the recurrent weights. An LSTM may have integers; then each step quantises the state by
        its range.
    """

    kind: str
    steps: int
    batch: int
    directions: int
    hidden: int
    is_reverse: bool = False
    resets_first: bool = False
    weight_dtype: str = "float32"

    @property
    def early(self) -> int:
        """The first gates, update and reset, whose products a step needs before the others."""
        return 2 if self.resets_first else 0

    def tile(self, traits: CpuTraits) -> tuple[int, int]:
        """The register tile of the products: sequences, and values of their states."""
        most = max(1, traits.registers // GATES[self.kind])
        rows = max(each for each in range(1, most + 1) if self.batch % each == 0)
        return rows, next(each for each in (4, 2, 1) if each * rows <= most)

    def workers(self, threads: int) -> int:
        """Threads that share each step of a direction. If it is 1, directions run in parallel."""
        count = self.hidden * GATES[self.kind] * self.hidden
        item_bytes = np.dtype(self.weight_dtype).itemsize
        waits = 2 if self.resets_first else 1
        return shared_by(threads, self.directions, count, item_bytes, waits)

    def kernel(self, traits: CpuTraits) -> tvm.tirx.PrimFunc:
        """The scheduled kernel.

        It reads, in this order:

        - the products of all inputs with their weights, plus the biases: shape (steps x batch,
          directions x gates x hidden);
        - the recurrent weights: shape (directions, panels, hidden x gates, lanes), where a panel
          belongs to one vector of a state's values, and begins with the early gates;
        - the bias that a GRU resets: shape (directions, hidden); or the scales of quantised
          weights: shape (directions, gates x hidden);
        - the first state, and the first cell: shape (directions, batch, hidden).

        It writes the last cell, shape (directions, batch, hidden), and the states of all steps,
        shape (steps, directions, batch, hidden).

        A panel belongs to the same thread at every step, so its weights stay in that core's cache.
        """
        kind, steps, batch, directions, hidden, is_reverse, resets_first, weight_dtype = self
        gates, lanes = GATES[kind], traits.lanes("float32")
        panels, width = hidden // lanes, gates * hidden
        is_quantised = weight_dtype != "float32"
        extra_width = width if is_quantised else hidden
        rows, unrolled = self.tile(traits)
        workers = self.workers(traits.threads)
        share = -(-panels // workers)
        launch, barrier = (_LAUNCH, _BARRIER) if workers > 1 else (_IGNORED, _IGNORED)
        direction_loop = T.parallel if workers == 1 < min(directions, traits.threads) else T.serial
        worker_loop = T.parallel if workers > 1 else T.serial
        cell_after, state_after = CELLS[RESETS_FIRST if resets_first else kind]
        early = self.early
        multiply = multiplication(rows, unrolled, lanes, hidden)
        quantise = quantisation(batch, panels, lanes)

        def place(step: Any, d: Any) -> Any:
            """The index in the sequence of a direction's step."""
            if directions == 1:
                return steps - 1 - step if is_reverse else step
            return step + d * (steps - 1 - 2 * step)

        def entered(given: Any, step: Any, d: Any, row: Any, g: Any, i: Any) -> Any:
            """A gate's product with the input."""
            return given[place(step, d) * batch + row, d * width + g * hidden + i]

        def factor(state: Any, early_gates: Any, step: Any, d: Any, row: Any, i: Any) -> Any:
            """What the last product of a step multiplies: the state, unless it was reset."""
            return early_gates[d, 1, row, i] if resets_first else state[d, step % 2, row, i]

        def extra(extras: Any, early_gates: Any, d: Any, row: Any, i: Any) -> Any:
            """What else a GRU's next state depends on: its update, or the bias that it resets."""
            return early_gates[d, 0, row, i] if resets_first else extras[d, i]

        def product(
            sums: Any, extras: Any, scale: Any, b: Any, d: Any, g: Any, p: Any, i: Any
        ) -> Any:
            """A gate's product with the state."""
            if not is_quantised:
                return sums[b, 0, g, i]
            return sums[b, 0, g, i] * (scale[0] * extras[d, g * hidden + p * lanes + i])

        @T.macro
        def advance(  # type: ignore[no-untyped-def]
            sums, given, extras, early_gates, scale, state, states, cell, step, d, p, row, b
        ):
            for lane in T.vectorized(lanes):
                cell[d, row, p * lanes + lane] = cell_after(
                    lambda g: product(sums, extras, scale, b, d, g, p, lane),
                    lambda g: entered(given, step, d, row, g, p * lanes + lane),
                    cell[d, row, p * lanes + lane],
                )
            for lane in T.vectorized(lanes):
                state[d, (step + 1) % 2, row, p * lanes + lane] = state_after(
                    lambda g: product(sums, extras, scale, b, d, g, p, lane),
                    lambda g: entered(given, step, d, row, g, p * lanes + lane),
                    extra(extras, early_gates, d, row, p * lanes + lane),
                    state[d, step % 2, row, p * lanes + lane],
                    cell[d, row, p * lanes + lane],
                )
            for lane in T.vectorized(lanes):
                states[place(step, d), d, row, p * lanes + lane] = state[
                    d, (step + 1) % 2, row, p * lanes + lane
                ]

        @T.macro
        def reset(sums, given, state, early_gates, step, d, p, row, b):  # type: ignore[no-untyped-def]
            for g in T.unroll(early):
                for lane in T.vectorized(lanes):
                    early_gates[d, g, row, p * lanes + lane] = T.sigmoid(
                        sums[b, 0, g, lane] + entered(given, step, d, row, g, p * lanes + lane)
                    )
            for lane in T.vectorized(lanes):
                early_gates[d, 1, row, p * lanes + lane] = (
                    early_gates[d, 1, row, p * lanes + lane]
                    * state[d, step % 2, row, p * lanes + lane]
                )

        @T.macro
        def fetch(known, value):  # type: ignore[no-untyped-def]
            # Other cores wrote parts of the state: it is read at once, not line by line between
            # multiplications.
            for row in T.serial(batch):
                for q in T.unroll(panels):
                    for lane in T.vectorized(lanes):
                        known[row, q * lanes + lane] = value(row, q * lanes + lane)

        @T.macro
        def reset_share(given, weights, state, early_gates, step, d, worker):  # type: ignore[no-untyped-def]
            with T.sblock("reset"):
                T.reads(
                    given[0 : steps * batch, 0 : directions * width],
                    weights[d, 0:panels, 0:width, 0:lanes],
                    state[d, 0:2, 0:batch, 0:hidden],
                )
                T.writes(early_gates[d, 0:2, 0:batch, 0:hidden])
                sums = T.sblock_alloc_buffer(
                    (rows, unrolled, gates, lanes), "float32", scope="local"
                )
                known = T.sblock_alloc_buffer((batch, hidden), "float32", scope="local")
                fetch(known, lambda row, i: state[d, step % 2, row, i])
                for q in T.serial(T.min(share, panels - worker * share)):
                    for tile in T.serial(batch // rows):
                        multiply(sums, weights, known, d, worker * share + q, tile, 0, early)
                        for b in T.unroll(rows):
                            reset(
                                sums, given, state, early_gates,
                                step, d, worker * share + q, tile * rows + b, b,
                            )  # fmt: skip

        @T.macro
        def advance_share(  # type: ignore[no-untyped-def]
            given, weights, extras, state, early_gates, states, cell, step, d, worker
        ):
            with T.sblock("share"):
                T.reads(
                    given[0 : steps * batch, 0 : directions * width],
                    weights[d, 0:panels, 0:width, 0:lanes],
                    extras[d, 0:extra_width],
                    state[d, 0:2, 0:batch, 0:hidden],
                    early_gates[d, 0:2, 0:batch, 0:hidden],
                    cell[d, 0:batch, 0:hidden],
                )
                T.writes(
                    state[d, 0:2, 0:batch, 0:hidden],
                    states[0:steps, d, 0:batch, 0:hidden],
                    cell[d, 0:batch, 0:hidden],
                )
                sums = T.sblock_alloc_buffer(
                    (rows, unrolled, gates, lanes), "float32", scope="local"
                )
                known = T.sblock_alloc_buffer((batch, hidden), "float32", scope="local")
                fetch(known, lambda row, i: factor(state, early_gates, step, d, row, i))
                # A quantised state's scale, and its zero point.
                scale = T.sblock_alloc_buffer((2,), "float32", scope="local")
                if is_quantised:
                    ends = T.sblock_alloc_buffer((2, lanes), "float32", scope="local")
                    quantise(known, ends, scale)
                for q in T.serial(T.min(share, panels - worker * share)):
                    for tile in T.serial(batch // rows):
                        multiply(
                            sums, weights, known,
                            d, worker * share + q, tile, early, gates - early,
                        )  # fmt: skip
                        for b in T.unroll(rows):
                            advance(
                                sums, given, extras, early_gates, scale, state, states, cell,
                                step, d, worker * share + q, tile * rows + b, b,
                            )  # fmt: skip

        @T.prim_func(s_tir=True)
        def recurrence(
            given: T.Buffer((steps * batch, directions * width), "float32"),
            weights: T.Buffer((directions, panels, width, lanes), weight_dtype),
            extras: T.Buffer((directions, extra_width), "float32"),
            first: T.Buffer((directions, batch, hidden), "float32"),
            first_cell: T.Buffer((directions, batch, hidden), "float32"),
            cell: T.Buffer((directions, batch, hidden), "float32"),
            states: T.Buffer((steps, directions, batch, hidden), "float32"),
        ) -> None:
            T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE, IS_SCHEDULED: True})
            with T.sblock("recurrence"):
                T.reads(
                    given[0 : steps * batch, 0 : directions * width],
                    weights[0:directions, 0:panels, 0:width, 0:lanes],
                    extras[0:directions, 0:extra_width],
                    first[0:directions, 0:batch, 0:hidden],
                    first_cell[0:directions, 0:batch, 0:hidden],
                )
                T.writes(
                    states[0:steps, 0:directions, 0:batch, 0:hidden],
                    cell[0:directions, 0:batch, 0:hidden],
                )
                # A step reads one of the two buffers of a state, and writes the other.
                state = T.sblock_alloc_buffer((directions, 2, batch, hidden), "float32")
                # The update, and the state that was reset; used only if the layer resets first.
                early_gates = T.sblock_alloc_buffer((directions, 2, batch, hidden), "float32")
                for d in T.serial(directions):
                    for b in T.serial(batch):
                        for i in T.serial(hidden):
                            state[d, 0, b, i] = first[d, b, i]
                            cell[d, b, i] = first_cell[d, b, i]
                with T.attr(0, launch, 1):
                    for d in direction_loop(directions):
                        for step in T.serial(steps):
                            if resets_first:
                                with T.attr(0, barrier, 1):
                                    for worker in worker_loop(workers):
                                        reset_share(
                                            given, weights, state, early_gates, step, d, worker
                                        )
                            with T.attr(0, barrier, 1):
                                for worker in worker_loop(workers):
                                    advance_share(
                                        given, weights, extras, state, early_gates, states, cell,
                                        step, d, worker,
                                    )  # fmt: skip

        return recurrence
