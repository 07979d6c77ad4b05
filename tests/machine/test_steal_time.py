"""What others keep from the cores, the host among them: read, and told."""

import os

import psutil
import pytest

from fewtune.machine import host


@pytest.fixture
def stat(tmp_path, monkeypatch):
    """A stand-in for /proc/stat, on a machine of which two of three cores are usable."""
    path = tmp_path / "stat"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    return path


@pytest.mark.parametrize(("threads", "taken"), [(2, 1.4), (1, 0.4)])
def test_what_others_take_beyond_spare_cores_is_measured(stat, monkeypatch, threads, taken):
    """In ten seconds the cores are busy for 15, of which this process ran 3; the host kept 2."""
    now_s, own_s = iter([0.0, 10.0]), iter([1.0, 4.0])
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(now_s))
    monkeypatch.setattr(host.time, "process_time", lambda: next(own_s))
    stat.write_text("cpu\ncpu0 100 0 0 50 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n")
    neighbours = host.Neighbours(threads)
    # The thread may be on fewer cores by then.
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2})
    stat.write_text(
        "cpu\n"
        "cpu0 800 0 100 50 0 0 100 100 0 0\n"
        "cpu1 9999 0 0 0 0 0 0 9999 0 0\n"
        "cpu2 500 100 0 9 0 0 0 100 0 0\n"
    )
    assert neighbours.taken_cores() == pytest.approx(taken)
