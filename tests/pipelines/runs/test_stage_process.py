"""A disk that takes nothing more is told in one sentence, by whomever it was met."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewtune.errors import MachineError
from pipelines.runs.stage_process import run_stage


@pytest.mark.parametrize(
    "told",
    [
        "unexpected error - [Errno 28] No space left on device",
        "failed to reproduce 'tune': No possible cache link types for 'out/x'",
        "unexpected error - [Errno 30] Read-only file system: 'dvc.lock'",
    ],
)
def test_what_dvc_says_of_a_full_disk(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "ERROR: {told}" >&2\nexit 255\n')
    script.chmod(0o755)
    monkeypatch.setenv("FEWTUNE_PYTHON", str(script))
    ending = run_stage(tmp_path, "tune", tmp_path / "log", lambda line: None)
    assert ending.exit_code == MachineError.exit_code
    assert ending.error.startswith("the disk does not take what was made (ERROR: ")


def test_a_log_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho a line\n")
    script.chmod(0o755)
    monkeypatch.setenv("FEWTUNE_PYTHON", str(script))
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        run_stage(tmp_path, "tune", Path("/dev/full"), lambda line: None)
