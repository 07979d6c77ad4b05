"""What checking every schedule costs, and what it catches: ``python benchmarks/schedule_check.py``.

Tasks of two models are tuned as ``fewtune run`` tunes them, by the same session, which accounts the
seconds that its checks took. Then faults are put into right schedules of the same tasks, one by
one: a layout of weights that loses an axis, a loop that ends a step early, a term of a sum that
is left out, a value that comes out a hundredth too large. A table says how many were refused; right
schedules must all pass. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.helpers.common import alone
from benchmarks.helpers.heavy_tasks import model_tasks
from fewtune.artifacts import Fingerprint
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.measure.measurer import Measurer, module_specs
from fewtune.options import TuneOptions
from fewtune.process.temporary import own_temporary_folder
from fewtune.runtime.target import target_from_json
from fewtune.runtime.tvm import tvm
from fewtune.schedule.defaults.default import default_schedule
from fewtune.schedule_check.check import ScheduleCheck
from fewtune.storage.database import replay
from fewtune.task.extract import Task
from fewtune.task.layout_maps import PREPROC
from fewtune.trial.outcome import WRONG_OUTPUT
from fewtune.tuning.job import TuneJob
from fewtune.tuning.tune import run_session
from fewtune.util.files import write_text
from fewtune.util.table import Table
from fewtune.workers.pool import WorkerPool

_MODELS = ("squeezenet", "resnet50")
_TARGET_PCT = 2.0


def shortened(kind: str) -> Callable[[str], str | None]:
    """A fault: a loop over an axis of a kind, in TensorIR's letters, ends one step too early."""

    def shorten(text: str) -> str | None:
        lines = text.splitlines()
        for place in reversed(range(len(lines))):
            axes = _axes(lines, place)
            if axes is None or kind not in axes:
                continue
            numbers = list(re.finditer(r"(?<![a-z\d])\d+(?=[,)])", lines[place]))
            which = max(p for p, each in enumerate(axes) if each == kind)
            begin, end = numbers[which].span()
            if int(lines[place][begin:end]) > 1:
                less = str(int(lines[place][begin:end]) - 1)
                lines[place] = lines[place][:begin] + less + lines[place][end:]
                return "\n".join(lines)
        return None

    return shorten


def _axes(lines: list[str], place: int) -> str | None:
    """The kinds of the axes of the block that a line's loops are all around."""
    if "T.grid(" not in lines[place] or "sblock" not in lines[place + 1]:
        return None
    found = re.search(r'axis\.remap\("(\w+)", \[([^\]]*)\]', lines[place + 2])
    loops = lines[place].split(" in ")[0].removeprefix("for ").strip().removeprefix("for ")
    return found[1] if found and found[2] == loops else None


def lost_axis(text: str) -> str | None:
    """A fault: the weights' layout loses the longest axis."""
    if PREPROC not in text:
        return None
    head, _, rest = text.partition(PREPROC)
    found = re.search(r"(\w+)\[([^\]]*)\] = (\w+)\[([^\]]*)\]", rest)
    if found is None:
        return None
    name, place = found[1], found[2]
    last = place.split(", ")[-1]
    if last.isdigit():
        return None
    wrong = place.removesuffix(last) + f"({last}) * 0"
    body = rest.replace(f"{name}[{place}] =", f"{name}[{wrong}] =", 1)
    cut = head.rfind(f"T.writes({name}[{place}])")
    if cut >= 0:
        head = head[:cut] + head[cut:].replace(f"[{place}]", f"[{wrong}]", 1)
    return head + PREPROC + body


def grown(text: str) -> str | None:
    """A fault: what the kernel writes last is a hundredth too large."""
    lines = text.splitlines()
    for place in reversed(range(len(lines))):
        found = re.match(r"(\s+\w+\[[^=]*\]) = (.+)$", lines[place])
        if found and "float32" in text:
            lines[place] = f"{found[1]} = ({found[2]}) * T.float32(1.01)"
            return "\n".join(lines)
    return None


FAULTS: dict[str, Callable[[str], str | None]] = {
    "a layout that loses an axis": lost_axis,
    "a row of the output left out": shortened("S"),
    "a term of a sum left out": shortened("R"),
    "a hundredth too large": grown,
}


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=16, help="trials a task, on average")
    parser.add_argument("--tasks", type=int, default=4, help="tasks of each model")
    parser.add_argument(
        "--limit-s", type=float, default=540, help="begin no further model or task after so long"
    )
    parser.add_argument("--output", type=Path, help="also write the JSON object to this file")
    arguments = parser.parse_args()
    # As a run of `fewtune` has it: its processes share what tasks compute.
    with alone("schedule_check"), own_temporary_folder():
        run(arguments)


@dataclass
class Found:
    """Tunings, faults by kind, and right schedules with those refused."""

    tuned: list[tuple[str, int, int, int, float, float]] = field(default_factory=list)
    seeded: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    right: int = 0
    right_refused: int = 0
    left_out: list[str] = field(default_factory=list)

    def add(self, what: str | None, refused: bool) -> None:
        """Take in a verdict on a fault, or on a right schedule."""
        if what is None:
            self.right += 1
            self.right_refused += refused
        else:
            self.seeded[what] += 1
            self.caught[what] += refused

    def summary(self) -> dict[str, Any]:
        """The figures of the last line."""
        whole_s = sum(each[4] for each in self.tuned)
        checks_s = sum(each[4] * each[5] / 100 for each in self.tuned)
        return {
            "check_pct": round(100 * checks_s / whole_s, 3),
            "target_pct": _TARGET_PCT,
            "wrong_in_tuning": sum(each[3] for each in self.tuned),
            "faults": self.seeded.total(),
            "refused": self.caught.total(),
            "right": self.right,
            "right_refused": self.right_refused,
            "left_out": self.left_out,
        }


def run(arguments: argparse.Namespace) -> None:
    """Tune, account, put faults in, and print."""
    began_s = time.perf_counter()
    fingerprint = detect_fingerprint(FingerprintOptions())
    target = target_from_json(fingerprint.target)
    found = Found()

    def is_late() -> bool:
        return time.perf_counter() - began_s > arguments.limit_s

    for model in _MODELS:
        if is_late():
            found.left_out.append(model)
            continue
        tasks = model_tasks(model, fingerprint, arguments.tasks)
        options = TuneOptions(trials_per_task=arguments.trials, least_gain=0.0)
        names = [task.info.name for task in tasks]
        with tempfile.TemporaryDirectory() as scratch:
            state = run_session(tasks, TuneJob(names, options), fingerprint, Path(scratch))
        wrong = sum(s.failures().get(WRONG_OUTPUT, 0) for s in state.tasks.values())
        checked = sum(t.is_checked is True for s in state.tasks.values() for t in s.trials)
        share = 100 * state.phases.check_s / state.elapsed_s
        found.tuned.append((model, state.trials, checked, wrong, state.elapsed_s, share))
        print(f"{model}: {share:.2f} % of {state.elapsed_s:.0f} s", flush=True)
        for task in tasks:
            if is_late():
                found.left_out.append(f"faults of {task.info.name}")
                continue
            ranked = state.tasks[task.info.name].ranked()
            default = default_schedule(task.mod, target)
            given = [replay(task.mod, trial, target).mod for trial in ranked[:1]]
            given += [default.mod] if default is not None else []
            # Its sums are still whole loops.
            given.append(task.mod)
            for what, refused in _judged(fingerprint, task, given):
                found.add(what, refused)
    header = ["model", "trials", "checked", "wrong output", "tuning s", "checks %"]
    rows = [[m, str(n), str(c), str(w), f"{s:.1f}", f"{p:.2f}"] for m, n, c, w, s, p in found.tuned]
    print(Table(header, rows).text())
    rows = [[name, str(found.seeded[name]), str(found.caught[name])] for name in FAULTS]
    print(Table(["fault", "seeded", "refused"], rows).text())
    print(
        f"Right schedules: {found.right}, refused {found.right_refused}. {fingerprint.device}, "
        f"{fingerprint.threads} threads; {time.strftime('%Y-%m-%d')}."
    )
    if found.left_out:
        print(f"Left out, since time ran out: {', '.join(found.left_out)}.")
    print(json.dumps(found.summary()))
    if arguments.output:
        write_text(arguments.output, json.dumps(found.summary(), indent=2) + "\n")


def _judged(
    fingerprint: Fingerprint, task: Task, given: list[tvm.IRModule]
) -> Iterator[tuple[str | None, bool]]:
    """Every fault that fits a task's schedules, and these themselves: whether it is refused."""
    modules: list[tuple[str | None, tvm.IRModule]] = [(None, module) for module in given]
    for module in given:
        text = module.script()
        for name, fault in FAULTS.items():
            altered = fault(text)
            if altered is None:
                continue
            try:
                modules.append((name, tvm.script.from_source(altered)))
            except Exception:  # noqa: BLE001 (what is no kernel is no fault of one)
                continue
    wanted = ScheduleCheck(task.info.workload, tvm.ir.save_json(task.mod))
    with WorkerPool(fingerprint.target, fingerprint.threads, fingerprint.threads) as pool:
        outcomes = Measurer(pool).measure(
            [module for _, module in modules],
            [module_specs(task.mod)] * len(modules),
            [None] * len(modules),
            races=range(len(modules)),
            checks=[wanted] * len(modules),
        )
    for (name, _), outcome in zip(modules, outcomes, strict=True):
        if outcome.cause in (None, WRONG_OUTPUT):
            yield name, outcome.cause is not None


if __name__ == "__main__":
    main()
