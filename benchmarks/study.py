"""Strategies and cost models on the same tasks: ``python benchmarks/study.py [--measured]``.

Without ``--measured`` nothing is measured: strategies search a task whose every schedule was
measured once (`tests.recorded`), and cost models are held to that task and to the practice samples
under ``results/practice``, whose shapes are held out in four folds. So it runs on a busy machine.
``--measured`` has the processor to itself: each strategy tunes the heaviest tasks of SqueezeNet and
ResNet 50 with the same trials, then the best of all take turns. It ends within ``--budget-s``.

``results/study.json`` has lists of rows (``strategies``, ``cost_models``, ``selections``), each row
with a ``name``; what was measured earlier stands until it is measured again. ``docs/study.md`` and
its picture are made of that file.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import spearmanr

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import alone
from benchmarks.stock.tuning_loop import model_tasks, tune_ours
from fewtune.graph_model.cost_model import GraphModel
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.options import TuneOptions
from fewtune.predictor.features import DecisionFeatures
from fewtune.predictor.predefined import Predefined
from fewtune.predictor.predictor import Predictor
from fewtune.predictor.pretrained import Pretrained, TaskSamples
from fewtune.predictor.training_samples import read_samples
from fewtune.runtime.target import target_from_json
from fewtune.schedule.space.design_space import Point
from fewtune.schedule.space.prior import Prior
from fewtune.search import STRATEGIES, Knowledge, Scorer, make_strategy, remade
from fewtune.search.cost_model import BoostedTrees
from fewtune.util.files import canonical_json, write_bytes, write_text
from fewtune.util.table import Table, number
from fewtune.workers.pool import WorkerPool
from tests import recorded

PROJECT = Path(__file__).parents[1]
PICTURE = "study.png"
_JUDGED = ("evolutionary", "annealing", "adaptive", "chameleon")
_UNJUDGED = ("genetic", "tile_rl", "random", "grid")
_AT = (8, 16, 32, 64)
_BATCH, _FOLDS = 8, 4
# Two-sided 95 % of a normal distribution.
_Z = 1.96


def recorded_search(name: str, judge: str, seed: int) -> tuple[list[float], float]:
    """Best seconds after each trial of a strategy on the recorded task, and the search's own."""
    space = recorded.space()
    predictor = Predictor(Predefined.of(space.target)) if judge == "predefined" else None
    options = TuneOptions(strategy=name, batch_size=_BATCH, seed=seed, informed_start=False)
    if predictor is not None:
        options = options.model_copy(update={"informed_start": True})
    search = make_strategy(space, Knowledge(predictor=predictor), options, seed)
    best: list[float] = []
    began_s = time.perf_counter()
    while len(best) < _AT[-1]:
        batch = search.next_batch(min(_BATCH, _AT[-1] - len(best)))
        if not batch:
            break
        times_s = [recorded.times_s()[proposal.point] for proposal in batch]
        for time_s in times_s:
            best.append(min(time_s, best[-1] if best else math.inf))
        search.learn(batch, times_s)
    return best, time.perf_counter() - began_s


def strategies_recorded(seeds: int) -> list[dict[str, Any]]:
    """One row a strategy and what rates its candidates."""
    optimum_s = min(recorded.times_s().values())
    pairs = [(name, judge) for name in _JUDGED for judge in ("xgboost", "predefined")]
    pairs += [(name, "none") for name in _UNJUDGED]
    rows = []
    for name, judge in pairs:
        runs = [recorded_search(name, judge, seed) for seed in range(1, seeds + 1)]
        curves = np.array([best + [best[-1]] * (_AT[-1] - len(best)) for best, _ in runs])
        logs = np.log(curves / optimum_s)
        found = {}
        for trials in _AT:
            mean, error = _mean_error(logs[:, trials - 1])
            found[str(trials)] = [round(math.exp(mean + k * _Z * error), 4) for k in (0, -1, 1)]
        rows.append(
            {
                "name": name,
                "judge": judge,
                "tasks": "recorded",
                "seeds": seeds,
                "over_optimum": found,
                "search_s": round(statistics.median(s for _, s in runs), 3),
                "curve": [round(float(x), 4) for x in np.exp(logs.mean(axis=0))],
            }
        )
        print(name, judge, found[str(_AT[-1])], flush=True)
    return rows


def _mean_error(values: np.ndarray) -> tuple[float, float]:
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


def told(name: str, on: str, scores: list[np.ndarray], times: list[np.ndarray]) -> dict[str, Any]:
    """A cost model's row: rank correlation, and the best of its first few over the best."""
    ranks = [
        float(spearmanr(score, -time_s)[0])
        for score, time_s in zip(scores, times, strict=True)
        if np.ptp(score) > 0 and np.ptp(time_s) > 0
    ]
    row: dict[str, Any] = {"name": name, "on": on, "tasks": len(times)}
    mean, error = _mean_error(np.array(ranks))
    row["rank_correlation"] = round(mean, 3)
    row["rank_correlation_ci"] = [round(mean - _Z * error, 3), round(mean + _Z * error, 3)]
    for top in (1, 3, 8):
        lost = [
            math.log(t[np.argsort(-s, kind="stable")[:top]].min() / t.min())
            for s, t in zip(scores, times, strict=True)
        ]
        row[f"best_of_{top}"] = round(math.exp(statistics.fmean(lost)), 4)
    return row


def models_on_practice(file: Path) -> list[dict[str, Any]]:
    """Models that go by decisions, on practice samples of shapes that they did not learn from."""
    sampled, conditions = read_samples(file)
    kept = [
        each
        for each in sampled
        if np.isfinite(each.samples.times_s).all() and len(each.samples.times_s) > 8  # noqa: PLR2004
    ]
    target = target_from_json(json.dumps(conditions["target"]))
    analytic = Predefined.of(target)
    shapes = sorted({each.shapes for each in kept})
    order = np.random.default_rng(0).permutation(len(shapes))
    folds = [{shapes[int(i)] for i in order[part::_FOLDS]} for part in range(_FOLDS)]
    learnt: dict[int, np.ndarray] = {}
    train_s = 0.0
    for fold in folds:
        began_s = time.perf_counter()
        taught = [each.samples for each in kept if each.shapes not in fold]
        trees = Pretrained.train(taught, conditions)
        train_s += time.perf_counter() - began_s
        for place, each in enumerate(kept):
            if each.shapes in fold:
                learnt[place] = trees.expected(each.samples.features)
    times = [each.samples.times_s for each in kept]
    features = np.concatenate([each.samples.features for each in kept])
    on = f"{file.stem}, held-out shapes (trials of a tuned search)"
    random = np.random.default_rng(0)
    rows = [
        told("decision predictor", on, [learnt[i] for i in range(len(kept))], times),
        told("predefined", on, [analytic.expected(e.samples.features) for e in kept], times),
        told("lots", on, [random.random(len(t)) for t in times], times),
    ]
    rows[0] |= {"train_s": round(train_s / _FOLDS, 2)}
    rows[0] |= {"us_a_point": _us(lambda: trees.expected(features), len(features))}
    rows[1] |= {"us_a_point": _us(lambda: analytic.expected(features), len(features))}
    return rows


def _us(rate: Callable[[], object], points: int) -> float:
    """Microseconds a point, the fastest of three."""
    taken = []
    for _ in range(3):
        began_s = time.perf_counter()
        rate()
        taken.append(time.perf_counter() - began_s)
    return round(1e6 * min(taken) / points, 3)


def models_on_recorded(seeds: int, learnt: int = 64, judged: int = 256) -> list[dict[str, Any]]:
    """Cost models that learn online, on unbiased draws of the recorded task."""
    space, every = recorded.space(), recorded.points()
    contraction = Prior(space).contraction
    assert contraction is not None
    features = DecisionFeatures(space.programs, contraction, is_cold=False)
    found: dict[str, list[np.ndarray]] = {}
    times: list[np.ndarray] = []
    spent: dict[str, list[float]] = {}
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).permutation(len(every))
        taught = _known([every[int(i)] for i in drawn[:learnt]])
        held = _known([every[int(i)] for i in drawn[learnt : learnt + judged]])
        taught_s, held_s = ([recorded.times_s()[p] for p in points] for points in (taught, held))
        times.append(np.array(held_s))
        for name, make in _online(space, features).items():
            began_s = time.perf_counter()
            score = make(taught, taught_s, held)
            spent.setdefault(name, []).append(time.perf_counter() - began_s)
            found.setdefault(name, []).append(score)
    rows = []
    on = f"recorded task, {learnt} learnt, {judged} unbiased draws held out"
    for name, scores in found.items():
        row = told(name, on, scores, times)
        rows.append(row | {"learn_and_rate_s": round(statistics.median(spent[name]), 3)})
    return rows


def _known(points: list[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(recorded.times_s()[point])]


_Online = Callable[[list[Point], list[float], list[Point]], np.ndarray]


def _online(space: Any, features: DecisionFeatures) -> dict[str, _Online]:
    """Models by name: taught by some points and their seconds, they rate others."""

    def stock(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        scorer = Scorer(space, BoostedTrees())
        scorer.learn(*remade(space, taught, times_s))
        return scorer.rate(remade(space, held, [0.0] * len(held))[0])[1]

    def graphs(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        scorer = Scorer(space, GraphModel())
        scorer.learn(*remade(space, taught, times_s))
        return scorer.rate(remade(space, held, [0.0] * len(held))[0])[1]

    def analytic(_: list[Point], __: list[float], held: list[Point]) -> np.ndarray:
        return Predefined.of(space.target).expected(features.of(held))

    def corrected(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        predictor = Predictor(Predefined.of(space.target))
        predictor.learn("task", features.of(taught), times_s)
        return predictor.expected("task", features.of(held))

    def trees(taught: list[Point], times_s: list[float], held: list[Point]) -> np.ndarray:
        samples = TaskSamples(features.of(taught), np.array(times_s))
        learnt = Pretrained.train([samples], {"lanes": 8, "threads": 2})
        return learnt.expected(features.of(held))

    return {
        "xgboost (stock features)": stock,
        "gcn": graphs,
        "predefined": analytic,
        "predefined, corrected by trials": corrected,
        "decision trees of these trials": trees,
    }


def strategies_measured(
    names: Sequence[str], tasks_a_model: int, trials: int, budget_s: float
) -> list[dict[str, Any]]:
    """Every strategy on the same tasks with the same trials; their best take turns in the end."""
    began_s = time.perf_counter()
    fingerprint = detect_fingerprint(FingerprintOptions())
    tasks = [
        task
        for model in ("squeezenet", "resnet50")
        for task in model_tasks(model, fingerprint, tasks_a_model)
    ]
    lost: dict[str, list[float]] = {name: [] for name in names}
    spent: dict[str, list[float]] = {name: [] for name in names}
    longest_s = 0.0
    done = 0
    for task in tasks:
        task_s = time.perf_counter()
        if task_s - began_s + longest_s > budget_s:
            break
        runs = {}
        for name in names:
            options = TuneOptions(
                trials_per_task=trials, strategy=name, seed=1, least_gain=0.0, start_from="none"
            )
            runs[name] = tune_ours(task, fingerprint, options)
        valid = [name for name, run in runs.items() if run.best is not None]
        with WorkerPool(fingerprint.target, fingerprint.threads, 1) as pool:
            measurer = Measurer(pool)
            built = measurer.build([runs[name].best for name in valid])
            outcomes = measurer.duel(built, module_specs(task.mod), rounds=15, round_s=0.01)
        medians = dict(zip(valid, [o.median_s for o in outcomes], strict=True))
        best_s = min(medians.values())
        for name in names:
            spent[name].append(runs[name].elapsed_s)
            # Who found nothing that runs counts as ten times as slow.
            lost[name].append(math.log(medians.get(name, 10 * best_s) / best_s))
        done += 1
        longest_s = max(longest_s, time.perf_counter() - task_s)
        print(task.info.name, {n: round(m * 1e6, 1) for n, m in medians.items()}, flush=True)
    rows = []
    for name in names:
        mean, error = _mean_error(np.array(lost[name]))
        rows.append(
            {
                "name": name,
                "judge": "default",
                "tasks": f"{done} tasks of SqueezeNet and ResNet 50, {trials} trials each",
                "seeds": 1,
                "over_best": [round(math.exp(mean + k * _Z * error), 4) for k in (0, -1, 1)],
                "tuning_s": round(statistics.fmean(spent[name]), 2),
                "device": fingerprint.device,
                "target": fingerprint.target,
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    return rows


def picture(rows: list[dict[str, Any]]) -> bytes:
    """Best so far over the optimum, by trials: one line a strategy."""
    import io

    figure = Figure(figsize=(8, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row in rows:
        if "curve" in row:
            label = row["name"] if row["judge"] == "none" else f"{row['name']}, {row['judge']}"
            style = {"none": ":", "xgboost": "-", "predefined": "--"}[row["judge"]]
            axes.plot(range(1, len(row["curve"]) + 1), row["curve"], style, label=label)
    axes.set_xlabel("trials")
    axes.set_ylabel("best so far over the recorded optimum")
    axes.legend(fontsize=7)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120, metadata={"Software": None})
    return stream.getvalue()


def page(found: dict[str, Any]) -> str:
    """``docs/study.md``: the tables, and what they do not say."""
    searched = [row for row in found["strategies"] if "over_optimum" in row]
    measured = [row for row in found["strategies"] if "over_best" in row]
    parts = [
        "# Strategies and cost models side by side\n",
        "Made by `python benchmarks/study.py` from `results/study.json`. Bounds in brackets are\n"
        "95 % confidence intervals over seeds; rows whose intervals overlap cannot be told\n"
        "apart. Seconds are of a machine that may have been busy: compare within a table only.\n",
        "## Strategies on a recorded task\n",
        f"Every schedule of a small matrix product was measured once; a search replays that, with\n"
        f"{searched[0]['seeds']} seeds. Strategies without a model start from random points.\n"
        "Figures are the best found over the optimum. The task is small: one step of its clock, "
        "10 ns, is a quarter of the optimum.\n",
        Table(
            ["strategy", "rated by", *(f"{trials} trials" for trials in _AT), "search s"],
            [
                [
                    row["name"],
                    row["judge"],
                    *(_bounds(row["over_optimum"][str(trials)]) for trials in _AT),
                    number(row["search_s"]),
                ]
                for row in searched
            ],
            frozenset({0, 1}),
        ).markdown(),
        f"\n![Best so far by trials]({PICTURE})\n",
    ]
    if measured:
        parts += [
            "## Strategies on tasks of networks, measured\n",
            f"{measured[0]['tasks']}, one seed; {measured[0]['device']}, {measured[0]['date']}. "
            "Figures are the best of a strategy over the best of all, taken in turns.\n",
            Table(
                ["strategy", "over the best of all", "tuning s a task"],
                [[r["name"], _bounds(r["over_best"]), number(r["tuning_s"])] for r in measured],
                frozenset({0}),
            ).markdown(),
        ]
    parts += [
        "## Cost models\n",
        "Best of 1, 3, 8: the fastest of so many that are rated best, over the fastest of all that "
        "were measured. Trials of a search lie near its optimum, so that rank correlations on them "
        "are low; unbiased draws spread over the whole space.\n",
        Table(
            ["model", "on", "rank correlation", "best of 1", "of 3", "of 8", "us a point"],
            [
                [
                    row["name"],
                    row["on"],
                    f"{row['rank_correlation']:.2f} [{row['rank_correlation_ci'][0]:.2f} - "
                    f"{row['rank_correlation_ci'][1]:.2f}]",
                    *(f"{row[f'best_of_{top}']:.3f}" for top in (1, 3, 8)),
                    number(row.get("us_a_point")),
                ]
                for row in found["cost_models"]
            ],
            frozenset({0, 1}),
        ).markdown(),
        "\n## Not measured\n",
        "Whole models at equal trials and seconds by cost model, and ways of selecting beside the "
        "predictor and the bank. TVM's own `mlp` needs PyTorch, which fewtune does not install.\n",
    ]
    return "\n".join(parts)


def _bounds(values: Sequence[float]) -> str:
    middle, low, high = values
    return f"{middle:.3f} [{low:.3f} - {high:.3f}]"


def main() -> None:
    """Run the parts that are asked for, and write file, page and picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measured", action="store_true", help="tune real tasks, too")
    parser.add_argument("--seeds", type=int, default=5, help="on recorded tasks")
    parser.add_argument("--tasks", type=int, default=2, help="of each of two models (--measured)")
    parser.add_argument("--trials", type=int, default=32, help="a task and strategy (--measured)")
    parser.add_argument("--budget-s", type=float, default=540, help="of the measured part")
    parser.add_argument("--output", type=Path, default=PROJECT / "results" / "study.json")
    parser.add_argument("--page", type=Path, default=PROJECT / "docs" / "study.md")
    arguments = parser.parse_args()
    earlier = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    measured = [row for row in earlier.get("strategies", []) if "over_best" in row]
    if arguments.measured:
        with alone("study"):
            measured = strategies_measured(
                list(STRATEGIES), arguments.tasks, arguments.trials, arguments.budget_s
            )
    practice = sorted((PROJECT / "results" / "practice").glob("*.npz"))
    found = {
        "strategies": strategies_recorded(arguments.seeds) + measured,
        "cost_models": [
            *models_on_recorded(arguments.seeds),
            *(row for file in practice for row in models_on_practice(file)),
        ],
        "selections": earlier.get("selections", []),
    }
    write_text(arguments.output, canonical_json(found))
    write_text(arguments.page, page(found))
    write_bytes(arguments.page.with_name(PICTURE), picture(found["strategies"]))
    print(f"{arguments.output}, {arguments.page}")


if __name__ == "__main__":
    main()
