"""What 3x3 convolutions gain by Winograd's tiles.

``python benchmarks/parts/winograd_tiles.py 14,256,256 28,128,128``

Each shape is the side of a square plane, its channels, and its filters. The plain sum and the
products of tiles of 2 and 4 are tuned as tasks of one run, with weights in memory before every
call, as a model that outgrows the cache finds them; the transforms themselves are not measured.
This is what the estimate in `fewtune.model.passes.choose_winograd` is held against.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

# Run as a script, Python looks beside this file only.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.helpers.common import alone
from fewtune.artifacts import TaskInfo
from fewtune.errors import InputError
from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint
from fewtune.model.passes.choose_winograd import best_tile
from fewtune.model.passes.winograd import TYPE, Convolution, multiplied
from fewtune.options import TuneOptions
from fewtune.runtime.tvm import te, tvm
from fewtune.task.analysis import FLOAT32_BYTES
from fewtune.task.extract import Task, task_module, workload_hash
from fewtune.task.weight_layout import FREE
from fewtune.tuning.tune import run_session
from fewtune.util.table import Table

_TILES = (0, 2, 4)
_WEIGHTS = 1


def convolution(text: str) -> Convolution:
    """The convolution of ``side,channels,filters``, padded by one.

    Raises
    ------
    InputError
        If the text is none.
    """
    try:
        side, channels, filters = (int(number) for number in text.split(","))
    except ValueError:
        raise InputError(f"{text}: give SIDE,CHANNELS,FILTERS, such as 14,256,256") from None
    return Convolution((1, side, side, channels), filters, (1, 1, 1, 1))


def task_of(given: Convolution, m: int, share: float) -> Task:
    """The task of the plain sum (m = 0), or of the products of tiles of m."""
    channels, filters = given.shape[3], given.padded_filters
    if m == 0:
        shapes = [list(given.shape), [3, 3, channels, given.filters]]
        shapes.append([1, given.height, given.width, given.filters])
    else:
        places = (m + 2) ** 2
        tiles = given.tile_points(m) // places
        shapes = [[places, tiles, channels], [places, channels, filters], [places, tiles, filters]]
    data, weights = (te.placeholder(shape, dtype=TYPE) for shape in shapes[:2])
    if m == 0:
        result = tvm.topi.nn.conv2d_nhwc(data, weights, 1, list(given.padding), 1, TYPE)
    else:
        result = multiplied(data, weights)
    function = te.create_prim_func([data, weights, result]).with_attr(FREE, [_WEIGHTS])
    module = task_module(function)
    side = given.shape[1]
    info = TaskInfo(
        name=f"{side}x{side}, {channels} to {given.filters}, {f'tiles of {m}' if m else 'sum'}",
        workload=workload_hash(module),
        weight=1,
        anchor="winograd_matmul" if m else "conv2d_nhwc",
        operator="dense" if m else "conv2d",
        shapes=shapes,
        dtype=TYPE,
        flops=given.product_flops(m) if m else given.flops,
        bytes=FLOAT32_BYTES * sum(math.prod(shape) for shape in shapes),
        share=share,
    )
    return Task(info, module)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("shapes", nargs="+", metavar="SIDE,CHANNELS,FILTERS")
    parser.add_argument("--trials", type=int, default=40, help="trials a task, on average")
    arguments = parser.parse_args()
    with alone("winograd_tiles"):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Tune the plain sum and both tiles of each convolution, and print the table."""
    fingerprint = detect_fingerprint(FingerprintOptions())
    given = [convolution(text) for text in arguments.shapes]
    share = 1 / (len(given) * len(_TILES))
    tasks = [(each, m, task_of(each, m, share)) for each in given for m in _TILES]
    options = TuneOptions(trials_per_task=arguments.trials, least_gain=0.0)
    with tempfile.TemporaryDirectory() as scratch:
        every = [task for _, _, task in tasks]
        names = [task.info.name for task in every]
        state = run_session(every, names, fingerprint, options, Path(scratch), cold_weights=True)
    rows = []
    for each, m, task in tasks:
        best_s = state.tasks[task.info.name].ranked()[0].outcome.median_s
        weights_bytes = FLOAT32_BYTES * math.prod(task.info.shapes[_WEIGHTS])
        rows.append(
            [
                task.info.name,
                f"{best_s * 1e3:.3f}",
                f"{task.info.flops / best_s / 1e9:.0f}",
                f"{weights_bytes / 1e6:.1f}",
                f"{weights_bytes / best_s / 1e9:.1f}",
                "yes" if best_tile(each) == m else "",
            ]
        )
    Table(["kernel", "latency ms", "GFLOPS", "weights MB", "weights GB/s", "chosen"], rows).print()
    print(f"{fingerprint.device}, {fingerprint.threads} threads, {arguments.trials} trials a task")


if __name__ == "__main__":
    main()
