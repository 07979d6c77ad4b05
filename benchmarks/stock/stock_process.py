"""The process that ``stock.py`` is, as seen by those who give it jobs."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fewtune.runtime.tvm import tvm
from fewtune.task.extract import Task

_TELL_EVERY_S = 60.0


class StockProcess:
    """Tunes with stock MetaSchedule; its imports are done once.

    Parameters
    ----------
    threads : int
        Of the kernels that it measures: TVM's pool in its runner's workers.
    log : Path, optional
        File for what TVM prints; kept. Without, it is shown only if a job fails.
    """

    def __init__(self, threads: int, log: Path | None = None) -> None:
        self._log: IO[str] = log.open("w+") if log else tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("stock.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # Its runner's workers inherit it.
            env={**os.environ, "TVM_NUM_THREADS": str(threads)},
        )

    def run(self, job: dict[str, Any], tell: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Do one job, whose result file is chosen here; ``tell`` is called once a minute.

        Raises
        ------
        SystemExit
            If the process ended, with the end of what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as scratch:
            file, result = Path(scratch) / "job.json", Path(scratch) / "result.json"
            file.write_text(json.dumps({**job, "result": str(result)}))
            self._process.stdin.write(f"{file}\n")
            self._process.stdin.flush()
            while not select.select([self._process.stdout], [], [], _TELL_EVERY_S)[0]:
                tell()
            if self._process.stdout.readline().strip() != "done":
                self._log.seek(0)
                raise SystemExit(f"stock tuning failed: {self._log.read().strip()[-500:]}")
            return json.loads(result.read_text())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def job_tasks(tasks: list[Task]) -> list[dict[str, Any]]:
    """Tasks as a job names them."""
    return [
        {
            "name": task.info.name,
            "module": tvm.ir.save_json(task.mod),
            "weight": task.info.weight,
        }
        for task in tasks
    ]
