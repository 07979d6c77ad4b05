"""Latencies of a board, where onnxruntime does not run."""

from __future__ import annotations

from fewtune.report.noise import Latency, changed


def test_a_board_is_compared_by_its_own_clock_alone() -> None:
    before = Latency(2.0, 1.99, 2.01, None, "1.31.1")
    now = Latency(1.0, 0.99, 1.01, None, "1.31.1")
    found = changed(before, now)
    assert (found.verdict, found.beside) == ("faster", None)
    assert Latency.read(now.text()) == now
