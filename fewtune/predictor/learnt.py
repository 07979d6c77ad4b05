"""What tuning taught about this machine: the next model's prediction starts from it.

A predictor was trained on other machines. The trials of one tuned model correct it for the next
one: on a Xeon that no predictor knows, those of SqueezeNet brought the first choice for MobileNet
V2's tasks from 1.31 to 1.23 times the best trial, those of MobileNet V2 that for SqueezeNet's from
1.14 to 1.12 (geometric means). Each session that measures keeps its trials in the user's cache, by
machine.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError
from fewtune.predictor import LEARNT_FOLDER
from fewtune.predictor.feature_names import NAMES
from fewtune.predictor.predictor import Predictor
from fewtune.predictor.pretrained import TaskSamples, read_samples, write_samples
from fewtune.runtime.kernel_store import cache_home, is_own

# Trials of a task that say anything.
FEWEST = 3
# Sessions that are kept; trials of a task that are; trials that a prediction starts from, of each
# kind, the latest sessions' first.
_MOST_FILES, _OF_A_TASK, _MOST = 16, 48, 1_500


def keep(sampled: Sequence[TaskSamples], fingerprint: Fingerprint) -> None:
    """Keep what a session measured, in place of an earlier one's of the same tasks.

    Parameters
    ----------
    sampled : sequence of TaskSamples
        Named by `name_of`.
    fingerprint : Fingerprint
    """
    folder = _folder(fingerprint)
    kept = [_sample(each) for each in sampled if len(each.times_s) >= FEWEST]
    if folder is None or not kept:
        return
    tasks = "\n".join(sorted(each.name for each in kept))
    path = folder / f"{hashlib.sha256(tasks.encode()).hexdigest()[:16]}.npz"
    # A full disk costs what was learnt, not what was tuned.
    with suppress(OSError):
        write_samples(path, kept, {"machine": fingerprint.identity()})
        for old in _files(folder)[_MOST_FILES:]:
            old.unlink(missing_ok=True)


def teach(predictor: Predictor | None, fingerprint: Fingerprint, own: Iterable[str]) -> int:
    """Let a predictor learn what other models' sessions measured here; give how many trials.

    Parameters
    ----------
    predictor : Predictor or None
    fingerprint : Fingerprint
    own : iterable of str
        Workloads of the model: they teach nothing, so that a model that is tuned again, or in
        another way, gets the same predictions.
    """
    folder, taught = _folder(fingerprint), Counter[str]()
    if predictor is None or folder is None:
        return 0
    own = frozenset(own)
    for path in _files(folder):
        # A file of another version, or a damaged one, teaches nothing.
        with suppress(InputError):
            for features, times_s, name, _ in read_samples(path)[0]:
                kind, _, workload = name.partition(" ")
                if workload not in own and taught[kind] < _MOST:
                    # Times of two sessions of one task are not compared.
                    predictor.learn((path.stem, name), features, times_s.tolist(), kind)
                    taught[kind] += len(times_s)
    return taught.total()


def name_of(kind: str, workload: str) -> str:
    """A task's name here: the data type of its products, and its workload's hash."""
    return f"{kind} {workload}"


def ranks_taught(count: int) -> list[int]:
    """The ranks of a task's trials that are learnt: half the fastest, half over the rest."""
    if count <= _OF_A_TASK:
        return list(range(count))
    half = _OF_A_TASK // 2
    return [*range(half), *(half + rank * (count - half) // half for rank in range(half))]


def _sample(task: TaskSamples) -> TaskSamples:
    kept = np.argsort(task.times_s, kind="stable")[ranks_taught(len(task.times_s))]
    return TaskSamples(task.features[kept], task.times_s[kept], task.name)


def _files(folder: Path) -> list[Path]:
    """The sessions' files, the latest first."""
    return sorted(folder.glob("*.npz"), key=lambda path: (-path.stat().st_mtime_ns, path.name))


def _folder(fingerprint: Fingerprint) -> Path | None:
    """The folder of a machine; None where nothing is kept."""
    named = os.environ.get(LEARNT_FOLDER)
    if named == "":
        return None
    digest = hashlib.sha256("\n".join([fingerprint.identity(), *NAMES]).encode()).hexdigest()[:16]
    folder = (Path(named) if named else cache_home() / "learnt") / digest
    return folder if is_own(folder) else None
