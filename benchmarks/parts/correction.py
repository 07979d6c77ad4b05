"""What correcting the predictor by a run's own trials is worth: ``correction.py MODEL...``.

Models have to be tuned in full: their trials are read from ``out/MODEL/full/tune`` and replayed,
nothing is measured. As in sharing, two tasks have been tuned (40 of their trials are known); of
every other task three trials are chosen, and then twice four more, with what was learnt until then.
The table says how much slower than the best of all its trials the best of those chosen is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import one_line_errors
from fewtune.artifacts import Fingerprint
from fewtune.errors import InputError
from fewtune.predictor import AUTO
from fewtune.predictor.predictor import Predictor, pretrained_for
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from fewtune.runtime.target import target_from_json
from fewtune.util.table import Table, number
from pipelines.commands.predictor import Learnable, learnable_of
from stages.paths import Places

_TUNED, _TUNED_TRIALS = 2, 40
_ROUNDS = (3, 4, 4)
# Of a task with fewer trials there is little to choose.
_LEAST_TRIALS = 24


class Regret(NamedTuple):
    """How much slower than the best of all trials, by rounds: factors, (rounds,)."""

    corrected: np.ndarray
    alone: np.ndarray


def main() -> None:
    """Replay models, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--seeds", type=int, default=30, help="replays, other tasks tuned in each")
    parser.add_argument("--predictor", default=AUTO, help="path without ending")
    arguments = parser.parse_args()
    with one_line_errors("correction"):
        print(table(arguments.models, arguments.seeds, arguments.predictor).markdown())


def table(models: list[str], seeds: int, predictor: str) -> Table:
    """A row a model: the factor after each round, with the correction and without."""
    places = Places()
    target = target_from_json(Fingerprint.read(places.fingerprint).target)
    pretrained = pretrained_for(predictor, target)
    if pretrained is None:
        raise InputError(f"{predictor} is no predictor for this machine")
    counts = [str(count) for count in np.cumsum(_ROUNDS)]
    rows = []
    for model in models:
        found = regret(pretrained, learnable_of(model, places), seeds, model)
        pairs = zip(found.corrected, found.alone, strict=True)
        rows.append([model, *(number(factor) for pair in pairs for factor in pair)])
    heads = [f"{n} trials, {how}" for n in counts for how in ("corrected", "alone")]
    return Table(["model", *heads], rows)


def regret(pretrained: Pretrained, tasks: list[Learnable], seeds: int, model: str) -> Regret:
    """Geometric means over tasks and replays.

    Raises
    ------
    InputError
        If too few tasks of the model have trials to choose from.
    """
    samples = [each.samples for each in tasks if len(each.samples.times_s) >= _LEAST_TRIALS]
    if len(samples) <= _TUNED:
        raise InputError(f"{model} has no task to choose trials of: tune it in full first")
    means = {
        learns: np.mean(
            [replay(pretrained, samples, seed, learns=learns) for seed in range(seeds)], axis=0
        )
        for learns in (True, False)
    }
    return Regret(np.exp(means[True]), np.exp(means[False]))


def replay(
    pretrained: Pretrained, samples: list[TaskSamples], seed: int, *, learns: bool
) -> np.ndarray:
    """Logarithms of the best chosen over the best of all, a mean over tasks, (rounds,)."""
    random = np.random.default_rng(seed)
    predictor = Predictor(pretrained)

    def learn(task: int, places: np.ndarray) -> None:
        if learns:
            given = samples[task]
            predictor.learn(task, given.features[places], list(given.times_s[places]))

    # Logs have the fastest first; ties are not to be decided by that.
    order = [random.permutation(len(each.times_s)) for each in samples]
    tuned, *others = np.split(random.permutation(len(samples)), [_TUNED])
    for task in tuned:
        learn(int(task), order[task][:_TUNED_TRIALS])
    chosen: dict[int, np.ndarray] = {int(task): np.empty(0, int) for task in others[0]}
    means = []
    for count in _ROUNDS:
        picks = {}
        for task, known in chosen.items():
            rest = order[task][~np.isin(order[task], known)]
            speeds = predictor.expected(task, samples[task].features[rest])
            picks[task] = rest[np.argsort(-speeds, kind="stable")[:count]]
        for task, places in picks.items():
            chosen[task] = np.concatenate([chosen[task], places])
            learn(task, places)
        lost = [
            np.log(samples[task].times_s[known].min() / samples[task].times_s.min())
            for task, known in chosen.items()
        ]
        means.append(np.mean(lost))
    return np.array(means)


if __name__ == "__main__":
    main()
