"""A checkout of its own, with a network of three convolutions and small budgets, to maltreat."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.made.onnx_text import model_of

PROJECT = Path(__file__).resolve().parents[2]
MODEL = "three"
# Enough that every stage has something to do, and can be interrupted at it.
BUDGETS: dict[str, Any] = {
    "tune.trials_per_task": 4,
    "share_schedules.trials_per_task": 2,
    "share_schedules.least_gain": 0.01,
    "benchmark.rounds": 3,
    "benchmark.copies": 1,
    "benchmark.wait_s": 0,
}
_LEFT_OUT = ("results/", "docs/", "tests/")


def three_convolutions() -> onnx.ModelProto:
    """Convolutions 3x3, 1x1, 3x3 of 28x28, each with a ReLU; seeded weights."""
    random, weights = np.random.default_rng(0), {}
    for name, shape in {"w0": (32, 16, 3, 3), "w1": (64, 32, 1, 1), "w2": (64, 64, 3, 3)}.items():
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    return model_of(
        """(float[1,16,28,28] image) => (float[1,64,28,28] r2) {
            c0 = Conv <pads = [1, 1, 1, 1]> (image, w0)
            r0 = Relu (c0)
            c1 = Conv (r0, w1)
            r1 = Relu (c1)
            c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2)
            r2 = Relu (c2)
        }""",
        **weights,
    )


def copy_checkout(root: Path) -> None:
    """Copy what git tracks of this checkout, as it stands now, into a new repository at ``root``.

    Results, pages and tests are left out: the commands need none of them.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        source = PROJECT / name
        is_there = source.is_file() or source.is_symlink()
        if name and not name.startswith(_LEFT_OUT) and is_there:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "copy"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True, env=environment(root))


def environment(root: Path, changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of commands in the checkout at ``root``; it shares no lock, cache or store.

    Parameters
    ----------
    root : Path
    changes : mapping of str to str, optional
        Variables to be set besides.
    """
    beside = root.parent / f"{root.name}.beside"
    locks = beside / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    kept = {name: os.environ[name] for name in os.environ if not name.startswith("FEWTUNE_")}
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "TVM_NUM_THREADS"):
        kept.pop(name, None)
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "TMPDIR": str(locks),
        "FEWTUNE_LOCK_FOLDER": str(locks),
        "DVC_NO_ANALYTICS": "1",
        "DVC_GLOBAL_CONFIG_DIR": str(beside / "dvc-global"),
        "DVC_SYSTEM_CONFIG_DIR": str(beside / "dvc-system"),
        "DVC_SITE_CACHE_DIR": str(beside / "dvc-site"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        **(changes or {}),
    }


def fewtune(root: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``fewtune`` with ``arguments`` at ``root``, with environment variables changed."""
    return subprocess.run(
        [sys.executable, "-m", "fewtune.pipelines.cli", *arguments],
        cwd=root,
        env=environment(root, changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=400,
    )


def make(root: Path) -> Path:
    """Make the checkout at ``root``, with the network registered and budgets set."""
    root.mkdir(parents=True)
    copy_checkout(root)
    onnx.save(three_convolutions(), root / "three.onnx")
    added = fewtune(root, "add", "three.onnx", "--name", MODEL, "--no-check")
    if added.returncode:
        raise RuntimeError(added.stderr)
    set_parameters(root, BUDGETS)
    return root


def set_parameters(root: Path, values: Mapping[str, Any]) -> None:
    """Write ``values``, by their key paths, into params.yaml at ``root``."""
    from fewtune.pipelines.checkout.parameters import change_parameters

    change_parameters(root / "params.yaml", dict(values))
