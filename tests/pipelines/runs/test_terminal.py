"""A run on a terminal: a bar for each stage."""

import io

import pytest

from fewtune.pipelines.runs.run_plan import Steps
from fewtune.pipelines.runs.stage_process import Ending
from fewtune.pipelines.runs.terminal import Bars, steps_for
from fewtune.process.ending import VERBOSE
from fewtune.progress.progress import Snapshot


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_follows_the_trials_and_shows_the_last_line():
    stream = Terminal()
    bars = steps_for(stream)
    assert isinstance(bars, Bars)

    def work() -> Ending:
        bars.say(f"tune@net: {Snapshot('tune', 'dense', 12, 32, 1.0).line()}")
        (task,) = bars._progress.tasks
        assert (task.completed, task.total) == (12, 32)
        bars.say("tune@net: 32 trials in 3 s")
        return Ending(0)

    assert bars.do("tune@net", [], work) == Ending(0)
    *_, last, _ = stream.getvalue().splitlines()
    assert "tune@net" in last
    assert "32 trials in 3 s" in last


@pytest.mark.parametrize(("stream", "verbose"), [(io.StringIO(), ""), (Terminal(), "1")])
def test_lines_stay_lines_in_a_pipe_and_where_all_are_asked_for(stream, verbose, monkeypatch):
    if verbose:
        monkeypatch.setenv(VERBOSE, verbose)
    assert type(steps_for(stream)) is Steps
