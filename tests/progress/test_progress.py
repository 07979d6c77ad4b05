"""Lines of progress, and the one of steps on a terminal."""

import io
import time

from fewtune.process.apart import Note
from fewtune.progress.progress import Progress, Snapshot, Steps


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def snapshot(task: str, trials: int, best_ms: float | None = 1.0) -> Snapshot:
    return Snapshot(
        phase="tune",
        task=task,
        detail="1x8x8x16 1x1x16x32 1x8x8x32",
        trials=trials,
        trials_total=64,
        default_ms=2.0,
        best_ms=best_ms,
        estimated_latency_ms=3.25,
        elapsed_s=5.0,
        left_s=20.0,
        failures={"build_error": 1},
    )


def test_plain_lines_say_everything():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.say("begins")
    progress.show(snapshot("conv", 16))
    progress.show(snapshot("dense", 32, best_ms=None))
    first, second, third = stream.getvalue().splitlines()
    assert first == "begins"
    assert second == (
        "tune 16/64 trials | conv | 1x8x8x16 1x1x16x32 1x8x8x32 | best 1 ms, 2.00x of default 2 | "
        "model about 3.25 ms | failed: build_error 1 | 5 s, about 20 s left"
    )
    assert "best" not in third


def test_a_terminal_has_one_line_for_steps_and_loses_it_at_the_end():
    terminal = Terminal()
    with Steps("import", terminal) as tell:
        tell(Note("importing the graph", "operator Conv", since=time.time() - 5))
        assert "importing the graph, at operator Conv" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
