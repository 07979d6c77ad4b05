"""The `fewtune` command: what can be asked, and with which code it ends.

Kept light, so that help comes at once: what a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from fewtune import __version__
from fewtune.errors import MACHINES_FAULT, FewtuneError, MachineError, disk_line

INTERRUPTED, TERMINATED = 130, 143
_CODES = """\
exit codes:
  0    all results are up to date
  1    a model failed for more than one reason, or by a fault of this software
  2    bad input: a model, a name, a shape, a parameter, an option
  3    this machine lacks something: a device, a compiler, a free port, disk space
  4    a compiled model disagrees with onnxruntime, or a zoo model with its published counts
  5    a tuning journal is damaged or belongs to another machine
  6    a model became slower than it was on this machine (`fewtune watch`)
  130  interrupted; the same command goes on where it stopped
"""


def parser() -> argparse.ArgumentParser:
    """Everything that can be asked."""
    top = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="fewtune",
        description="Selective tuning for TVM: tune few tasks of a model, serve them all.",
        epilog="examples:\n"
        "  fewtune run                              the models that params.yaml lists\n"
        "  fewtune run model.onnx --trials 32       your own model\n"
        "  fewtune run squeezenet --all             with full tuning to compare with\n"
        "  fewtune compare squeezenet               recorded results side by side\n"
        "\n`fewtune COMMAND --help` says more.\n\n" + _CODES,
    )
    top.add_argument("--version", action="version", version=f"fewtune {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        _check,
        _add,
        _zoo,
        _run,
        _record,
        _report,
        _compare,
        _watch,
        _log,
        _bank,
        _predictor,
        _compile,
        _worker,
        _serve,
        _ui,
    ):
        add(commands)
    return top


def _check(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "check",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="say what a run would make of a model, without registering it",
        description="Import a model, compare its untuned outputs with onnxruntime's, and list its "
        "tasks, what would be tuned, options left out, and an estimate of the time.",
        epilog="examples:\n"
        "  fewtune check detector.onnx\n"
        "  fewtune check bert.onnx --dimension batch=1 --dimension sequence=128\n"
        "  fewtune check voice.onnx --constant sr=16000 --inputs sample.npz --json\n\n" + _CODES,
    )
    command.add_argument(
        "source",
        metavar="MODEL",
        help="path of an .onnx file, a registered name, light:NAME or zoo:NAME",
    )
    _shape_options(command)
    _input_options(command)
    command.add_argument(
        "--seed", type=int, default=0, help="of the weights of a light: or zoo: model"
    )
    command.add_argument("--json", action="store_true", help="as JSON on standard output")


def _input_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="INPUT=16000",
        help="bind an input to a value: a number, a list or an .npy file; may be given several "
        "times",
    )
    command.add_argument(
        "--inputs",
        metavar="FILE.npz",
        help="sample inputs, an array for each input; outputs are compared on them, too",
    )


def _add(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "add",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="register an ONNX model under a name",
        description="Check an ONNX model, copy it under models/ and list it in params.yaml.",
        epilog="examples:\n"
        "  fewtune add ~/models/detector.onnx\n"
        "  fewtune add bert.onnx --shape input_ids=1,128 --shape attention_mask=1,128\n"
        "  fewtune add light:resnet50 --name resnet50 --seed 1\n"
        "  fewtune add zoo:convnext_tiny --name convnext\n",
    )
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="path of an .onnx file, light:NAME for an architecture of the onnx package, or "
        "zoo:NAME (see `fewtune zoo`)",
    )
    command.add_argument("--name", help="a plain name; the file's unless given")
    _shape_options(command)
    _input_options(command)
    command.add_argument(
        "--no-check",
        action="store_true",
        help="register without importing it and comparing its outputs, which a run does anyway",
    )
    command.add_argument(
        "--seed", type=int, default=0, help="of the weights of a light: or zoo: model"
    )
    command.add_argument(
        "--replace", action="store_true", help="replace another model of that name"
    )


def _zoo(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "zoo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="show the models that can be made here, or make some",
        description="List published architectures that are made with seeded random weights, or "
        "check some against their published counts, register them under models/ and list them in "
        "params.yaml. Detectors end with decoded boxes, before non-maximum suppression.",
        epilog="examples:\n"
        "  fewtune zoo                               the table\n"
        "  fewtune zoo mobilenet_v2 convnext_tiny    register these two\n"
        "  fewtune zoo --all --output onnx           write all as .onnx files, register none\n"
        "  fewtune zoo resnet50_v1 --quantise        register it in eight bits\n",
    )
    command.add_argument("models", nargs="*", metavar="NAME", help="models of the table")
    command.add_argument("--all", action="store_true", help="every model of the table")
    command.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    command.add_argument(
        "--quantise",
        action="store_true",
        help="in eight bits, as NAME-int8: by onnxruntime's quantiser, with seeded inputs",
    )
    command.add_argument(
        "--output", metavar="DIR", help="write NAME.onnx files there instead of registering"
    )
    command.add_argument(
        "--replace", action="store_true", help="replace other models of these names"
    )


def _shape_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input with dynamic dimensions; may be given several times",
    )
    command.add_argument(
        "--dimension",
        action="append",
        default=[],
        metavar="NAME=1",
        help="size of a named dynamic dimension, in every input; may be given several times",
    )


def _run(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "run",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="bring results up to date: import, select, tune, share, compile, benchmark",
        description="Run the pipeline's stages through DVC, in one Prefect flow, and record the "
        "results in MLflow. What is up to date is not run again.",
        epilog="examples:\n"
        "  fewtune run                                  models of params.yaml, selective\n"
        "  fewtune run squeezenet resnet50 --all        every strategy, and their comparison\n"
        "  fewtune run model.onnx --shape x=1,3,64,64   registers your model first\n"
        "  fewtune run voice.onnx --constant sr=16000   the same, an input bound to a value\n"
        "  fewtune run squeezenet --trials 32 --set share_schedules.top='5%'\n"
        "\nTrials, budget, target and --set are written into params.yaml, so that DVC knows\n"
        "them; they stay until they are changed again.\n\n" + _CODES,
    )
    command.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a registered name or an .onnx file; the models of params.yaml unless given",
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="selective (the default), full, or oneshot (schedules are predicted, not measured); "
        "may be given several times",
    )
    which.add_argument(
        "--all", action="store_true", help="every strategy of params.yaml, and their comparison"
    )
    command.add_argument("--trials", type=int, metavar="N", help="tune.trials_per_task")
    command.add_argument("--budget", type=float, metavar="SECONDS", help="tune.budget_s")
    command.add_argument(
        "--target", metavar="T", help="fingerprint.target: auto, a kind such as cuda, or JSON"
    )
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--device",
        metavar="D",
        help="fingerprint.device: here, or a board behind a TVM tracker as rpc://HOST:9190/KEY, "
        "with --target as JSON",
    )
    where.add_argument(
        "--cluster",
        dest="device",
        metavar="C",
        help="the same, a fleet: tcp://HOST:8786 of a Dask scheduler, or local:2 for two workers "
        "here (they take turns)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="any other parameter; may be given several times",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="run every stage of these models again, also where nothing changed: after an update "
        "of fewtune, or a noisy hour",
    )
    _shape_options(command)
    _input_options(command)


def _record(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "record",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="record results that `dvc repro` or `dvc exp run` made",
        description="Record every result on disk that is not in MLflow yet. `fewtune run` does so "
        "for the results that it brings up to date.",
        epilog="examples:\n  dvc repro && fewtune record\n  fewtune record squeezenet\n",
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")


def _report(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="show the results on disk",
        description="Show the results table again, from what the stages wrote.",
        epilog="examples:\n"
        "  fewtune report\n"
        "  fewtune report squeezenet --kernels\n"
        "  fewtune report --markdown > results.md\n"
        "  fewtune report --rfc-table results\n",
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    command.add_argument("--kernels", action="store_true", help="and each result's kernels")
    command.add_argument("--markdown", action="store_true", help="as markdown")
    command.add_argument(
        "--rfc-table",
        metavar="DIR",
        help="write selective against full tuning of these models to DIR, as JSON and markdown; "
        "results of stock MetaSchedule are taken from DIR/stock",
    )


def _compare(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "compare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="show recorded results side by side, from MLflow",
        description="Compare two or more results recorded in MLflow, with their conditions. A "
        "model stands for the latest result of each of its strategies.",
        epilog="examples:\n"
        "  fewtune compare squeezenet                   selective against full\n"
        "  fewtune compare squeezenet-selective 4f2a91c0\n",
    )
    command.add_argument(
        "results", nargs="+", metavar="MODEL|RUN", help="a model, a run's name, id or its beginning"
    )


def _watch(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "watch",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="compare the latest results with those before, and fail if one is slower",
        description="Put the latest recorded result of each model beside the one before it, of the "
        "same machine and strategy, with the noise of both. Ends with code 6 if one is slower by "
        "more than the noise, and says which stage, versions and kernels changed. Writes a page "
        "of all results over time.",
        epilog="examples:\n"
        "  fewtune run --force && fewtune watch\n"
        "  fewtune watch squeezenet --page fleet\n"
        "  fewtune watch --fleet                     every machine in MLflow\n\n" + _CODES,
    )
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")
    command.add_argument(
        "--fleet", action="store_true", help="results of every machine, not of this one only"
    )
    command.add_argument(
        "--page", metavar="DIR", help="folder for fleet.md and fleet.png (default .fewtune/fleet)"
    )


def _log(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "log",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="merge tuning logs, or keep the best of one, for a later run to start from",
        description="Write the tuning records of one log or of several into another. A log is a "
        "folder with log.json and TVM's two database files. Logs of different machines, targets, "
        "thread counts, TVM versions or ways of measuring are refused.",
        epilog="examples:\n"
        "  fewtune log out/squeezenet/selective/share --best 5 --output logs/squeezenet\n"
        "  fewtune log out/*/full/share --output all\n"
        "\nWhat lies under logs/ (tune.start_from) is tried first by the next run.\n",
    )
    command.add_argument("logs", nargs="+", metavar="LOG", help="folder of a log")
    command.add_argument("--output", required=True, metavar="DIR", help="a folder to be made")
    command.add_argument(
        "--best", type=int, metavar="K", help="keep the K fastest of each workload (all)"
    )


def _bank(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "bank",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="hand tuned schedules to another machine of the same kind, as one file",
        description="Write the best schedules of the logs below bank/ into one file, or read such "
        "a file. A file of another machine, target, thread count, TVM version or way of measuring "
        "is refused.",
        epilog="examples:\n"
        "  fewtune bank export zoo.bank --licence CC0-1.0\n"
        "  fewtune bank import zoo.bank\n"
        "  fewtune run MODEL --set build_bank.selective.logs=bank\n\n" + _CODES,
    )
    kinds = command.add_subparsers(dest="action", metavar="export|import", required=True)
    export = kinds.add_parser("export", help="write a file")
    export.add_argument("file", metavar="FILE", help="to be made")
    export.add_argument("--logs", default="bank", metavar="DIR", help="folder of logs (bank)")
    export.add_argument(
        "--licence", default="not stated", metavar="NOTE", help="what it may be used for"
    )
    export.add_argument("--best", type=int, default=8, metavar="K", help="schedules a workload (8)")
    taken = kinds.add_parser("import", help="read a file into bank/NAME")
    taken.add_argument("file", metavar="FILE")
    taken.add_argument("--name", metavar="NAME", help="folder below bank/; the file's name")


def _predictor(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "predictor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="train, list or describe predictors, which rate schedules before they are made",
        description="A predictor is trained on models that were tuned in full, or on samples kept "
        "of such.",
        epilog="examples:\n"
        "  fewtune predictor train practice_{1..16} --output predictors/mine --keep mine.npz\n"
        "  fewtune predictor list\n"
        "  fewtune predictor info epyc\n"
        "  fewtune run MODEL --set tune.predictor=predictors/mine\n\n" + _CODES,
    )
    kinds = command.add_subparsers(dest="action", metavar="train|list|info", required=True)
    train = kinds.add_parser("train", help="train one")
    train.add_argument("models", nargs="*", metavar="MODEL", help="tuned in full here")
    train.add_argument(
        "--samples", action="append", default=[], metavar="FILE", help="kept earlier; repeatable"
    )
    train.add_argument("--keep", metavar="FILE", help="keep what is learnt from, as .npz")
    train.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="MODEL",
        help="learn nothing of its shapes, and tell how good the predictor is for it",
    )
    train.add_argument(
        "--output", required=True, metavar="PATH", help="without ending, such as predictors/mine"
    )
    kinds.add_parser("list", help="those that come with fewtune, and those of predictors/")
    info = kinds.add_parser("info", help="what one was trained on")
    info.add_argument("name", metavar="NAME", help="of the list, or a path without its ending")


def _compile(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "compile",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="compile a model for a GPU that is not here, without tuning",
        description="Import a model, check it on this machine's CPU beside onnxruntime, schedule "
        "its kernels by rule, and write a library with machine code for the architecture named. "
        "Needs NVIDIA's compiler: pip install 'fewtune[cuda]'. Nothing is run on a GPU.",
        epilog="examples:\n"
        "  fewtune compile squeezenet --target cuda --arch sm_90\n"
        "  fewtune compile model.onnx --shape x=1,3,64,64 --target cuda --output gpu\n\n" + _CODES,
    )
    command.add_argument("model", metavar="MODEL", help="a registered name or an .onnx file")
    command.add_argument("--target", choices=["cuda"], default="cuda")
    command.add_argument("--arch", default="sm_90", help="of the GPU (default sm_90)")
    command.add_argument(
        "--output", metavar="DIR", help="gets model.so (default out/MODEL/cuda-ARCH)"
    )
    _shape_options(command)


def _worker(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "worker",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="let this machine measure for a fleet",
        description="Run a Dask worker with one device, until interrupted. It runs whatever the "
        "scheduler's clients send: connect it to machines that you trust only. Further options go "
        "to Dask's worker.",
        epilog="examples:\n"
        "  dask scheduler --host 192.168.1.2                       on one machine\n"
        "  fewtune worker tcp://192.168.1.2:8786                   on each that measures\n"
        "  fewtune run squeezenet --cluster tcp://192.168.1.2:8786\n",
    )
    command.add_argument("scheduler", metavar="ADDRESS", help="tcp://HOST:8786, or tls://...")
    command.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="of `dask worker`, such as --tls-ca-file FILE --tls-cert FILE --tls-key FILE",
    )


def _serve(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "serve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="run on a schedule, without a work pool",
        description="Serve the deployments of prefect.yaml in this process until interrupted. "
        "Starts a Prefect server on 127.0.0.1, with its page, unless PREFECT_API_URL is set.",
        epilog="examples:\n"
        "  fewtune serve                     nightly, as prefect.yaml says\n"
        "  fewtune serve --cron '0 */6 * * *'\n",
    )
    command.add_argument("--cron", help="instead of the schedules of prefect.yaml")
    command.add_argument(
        "--port", type=int, default=4200, help="of the Prefect server (default 4200)"
    )


def _ui(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser(
        "ui",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="open the recorded results: MLflow's page on 127.0.0.1",
        description="Serve MLflow's page on 127.0.0.1 until interrupted. Leave it off while "
        "something is measured.",
        epilog="examples:\n  fewtune ui\n  fewtune ui --port 5001\n",
    )
    command.add_argument("--port", type=int, default=5000, help="(default 5000)")


class _TerminatedError(BaseException):
    """SIGTERM, told like an interruption: on the way out all that was started is ended."""


def _terminated(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _TerminatedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns
    -------
    code : int
        As the help lists them.
    """
    try:
        options = parser().parse_args(arguments)
        signal.signal(signal.SIGTERM, _terminated)
        from pipelines.commands import commands

        return getattr(commands, options.command)(options)
    except FewtuneError as error:
        print(f"fewtune: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("fewtune: interrupted; the same command goes on", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    except _TerminatedError:
        print("fewtune: ended; the same command goes on", file=sys.stderr, flush=True)
        return TERMINATED
    except BrokenPipeError:
        from pipelines.commands.show import close_output

        close_output()
        return 0
    except OSError as error:
        if error.errno not in MACHINES_FAULT and error.filename is None:
            raise
        print(f"fewtune: {disk_line(error)}", file=sys.stderr, flush=True)
        return MachineError.exit_code


if __name__ == "__main__":
    sys.exit(main())
