"""The command line of `fewtune`: a function for each command, whose docstring is its help.

A docstring has a summary, a description, and examples, which are indented.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect

from fewtune import __version__

CODES = """
exit codes:
  0    all results are up to date
  1    a model failed for more than one reason, or by a fault of this software
  2    bad input: a model, a name, a shape, a parameter, an option
  3    this machine lacks something: a device, a compiler, a port, disk space
  4    a compiled model disagrees with onnxruntime
  5    a tuning journal is damaged or belongs to another machine
  6    a model became slower than it was on this machine (`fewtune watch`)
  130  interrupted; the same command goes on where it stopped
  143  terminated; likewise
"""
_Parser = argparse.ArgumentParser
_SOURCE = "path of an .onnx file, or light:NAME for an architecture of the onnx package"


def parser() -> _Parser:
    """The parser of all commands."""
    top = _Parser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="fewtune",
        description="Selective tuning for TVM: tune few tasks of a model, serve them all.",
        epilog="examples:\n"
        "  fewtune run                              the models that params.yaml lists\n"
        "  fewtune run model.onnx --trials 32       your own model\n"
        "  fewtune run squeezenet --all             with full tuning to compare with\n"
        "  fewtune compare squeezenet               recorded results side by side\n"
        "\n`fewtune COMMAND --help` says more.\n" + CODES,
    )
    top.add_argument("--version", action="version", version=f"fewtune {__version__}")
    with contextlib.suppress(ImportError):
        import shtab

        shtab.add_argument_to(top, "--print-completion")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module, functions in _COMMANDS.items():
        for add_options in functions:
            name = add_options.__name__
            summary, _, text = inspect.cleandoc(add_options.__doc__ or "").partition("\n\n")
            description, _, examples = text.partition("\n\n  ")
            command = commands.add_parser(
                name,
                help=f"{summary[:1].lower()}{summary[1:].removesuffix('.')}",
                description=description,
                epilog=f"examples:\n  {examples}\n{CODES}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            # Imported when it runs.
            command.set_defaults(function=f"fewtune.pipelines.commands.{module}:{name}")
            add_options(command)
    return top


def _flag(command: _Parser, name: str, meaning: str) -> None:
    command.add_argument(name, action="store_true", help=meaning)


_WIDE = "every column, not only those that fit 80 letters"


def _json(command: argparse._ActionsContainer) -> None:
    command.add_argument("--json", action="store_true", help="as JSON on standard output")


def _file(command: _Parser, name: str, form: str, meaning: str) -> None:
    command.add_argument(name, metavar=form, help=meaning)


def _told(command: _Parser) -> None:
    told = command.add_mutually_exclusive_group()
    told.add_argument("--quiet", action="store_true", help="only results and errors")
    told.add_argument("--verbose", action="store_true", help="also what the library and TVM log")


def _count(
    command: _Parser, name: str, form: str, meaning: str, default: int | None = None
) -> None:
    command.add_argument(name, type=_from_one, default=default, metavar=form, help=meaning)


def _from_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: give a number from 1 on")
    return number


def _several(command: _Parser, name: str, form: str, meaning: str) -> None:
    meaning = f"{meaning}; may be given several times"
    command.add_argument(name, action="append", default=[], metavar=form, help=meaning)


def _only_models(command: _Parser) -> None:
    command.add_argument("models", nargs="*", metavar="MODEL", help="only these")


def _shape_options(command: _Parser) -> None:
    dynamic = "shape of a dynamic input; several make one library, named as prefill:ids=1,128"
    _several(command, "--shape", "INPUT=1,3,224,224", dynamic)
    _several(command, "--dimension", "NAME=1", "size, or sizes, of a named dynamic dimension")
    _several(command, "--paddable", "NAME=0", "value to pad a dimension with to the next shape")


def _input_options(command: _Parser) -> None:
    _shape_options(command)
    _several(command, "--constant", "INPUT=16000", "value of an input: number, list, .npy file")
    _file(command, "--inputs", "FILE.npz", "sample inputs; outputs are compared on them, too")


def _name(command: _Parser) -> None:
    command.add_argument("--name", help="a plain name of the model; the file's unless given")


def _seed(command: _Parser) -> None:
    command.add_argument("--seed", type=int, default=0, help="of the weights of a light: model")


def init(command: _Parser) -> None:
    """Make a project in a git repository of your own.

    Write fewtune's pipeline, its parameters and deployments into a folder of its
    own, and make the repository a DVC repository if it is none. A pipeline that is
    there stays, and `dvc repro` runs it as before. In a project, bring its dvc.yaml
    up to date with this version of fewtune, and write what is missing.

      fewtune init                     in fewtune/
      fewtune init tuning
    """
    command.add_argument("folder", nargs="?", default="fewtune", metavar="FOLDER")


def check(command: _Parser) -> None:
    """Say what a run would make of a model, without registering it.

    Import a model, compare its untuned outputs with onnxruntime's, and list its
    tasks, what would be tuned, options left out, and an estimate of the time.

      fewtune check detector.onnx
      fewtune check bert.onnx --dimension batch=1 --dimension sequence=128
      fewtune check voice.onnx --constant sr=16000 --inputs sample.npz --json
    """
    command.add_argument("source", metavar="MODEL", help=f"{_SOURCE}, or a registered name")
    _name(command)
    _json(command)
    _input_options(command)
    _seed(command)


def info(command: _Parser) -> None:
    """Say what a library is: its model, inputs, outputs, machine, accuracy.

    Print the note of a library that fewtune made, after its digest was checked.
    Nothing of it is run.

      fewtune info out/squeezenet/selective/compile/model.so
      fewtune info model.so --json
    """
    command.add_argument("library", metavar="LIBRARY", help="path of a model.so")
    _json(command)


def add(command: _Parser) -> None:
    """Register an ONNX model under a name.

    Check an ONNX model, copy it under models/ and list it in params.yaml.

      fewtune add ~/models/detector.onnx
      fewtune add bert.onnx --shape input_ids=1,128 --shape attention_mask=1,128
      fewtune add bert.onnx --dimension batch=1 --dimension sequence=16,32,64,128
      fewtune add light:resnet50 --name resnet50 --seed 1
    """
    command.add_argument("source", metavar="SOURCE", help=_SOURCE)
    _name(command)
    _flag(command, "--no-check", "leave out the import and check, which a run does anyway")
    _flag(command, "--replace", "replace another model of that name")
    _input_options(command)
    _seed(command)


def run(command: _Parser) -> None:
    """Bring results up to date: import, select, tune, share, compile, benchmark.

    Run the pipeline's stages through DVC and record the results in MLflow. What is
    up to date is not run again. With PREFECT_API_URL set, it is a flow run there.

      fewtune run                                  models of params.yaml, selective
      fewtune run squeezenet resnet50 --all        every strategy, their comparison
      fewtune run model.onnx --shape x=1,3,64,64   registers your model first
      fewtune run voice.onnx --constant sr=16000   the same, an input has a value
      fewtune run squeezenet --trials 32 --set share_schedules.least_gain=0.005

    Trials, budget and --set hold for this run and are recorded with its results;
    with --save they are written into params.yaml, for the models named or else for
    all. The target, the device and what build_bank reads are of the whole project:
    they are always written there, and stay until they are changed again.
    """
    named = "a registered name or an .onnx file; the models of params.yaml unless given"
    command.add_argument("models", nargs="*", metavar="MODEL", help=named)
    _name(command)
    which = command.add_mutually_exclusive_group()
    which.add_argument(
        "--strategy",
        action="append",
        metavar="NAME",
        help="selective (the default), full, or oneshot (schedules are predicted, not measured); "
        "may be given several times",
    )
    which.add_argument("--all", action="store_true", help="every strategy, and their comparison")
    command.add_argument("--trials", type=int, metavar="N", help="tune.trials_per_task")
    most = "seconds of tuning, and of sharing, at most"
    command.add_argument("--budget", type=float, metavar="SECONDS", help=most)
    _file(command, "--target", "T", "fingerprint.target: auto, a kind such as cuda, or JSON")
    board = "fingerprint.device: here, or a board behind a TVM tracker as rpc://HOST:9190/KEY, "
    board += "with --target as JSON; or a fleet: tcp://HOST:8786 of a Dask scheduler, or local:2 "
    board += "for two workers here (they take turns)"
    command.add_argument("--device", "--cluster", metavar="D", help=board)
    _several(command, "--set", "KEY.PATH=VALUE", "any other parameter")
    _flag(command, "--save", "write trials, budget and --set into params.yaml")
    _flag(command, "--force", "run every stage again: after an update of fewtune, or a noisy hour")
    _flag(command, "--wide", _WIDE)
    _json(command)
    _told(command)
    _input_options(command)


def record(command: _Parser) -> None:
    """Record results that `dvc repro` or `dvc exp run` made.

    Record every result on disk that is not in MLflow yet. `fewtune run` does so for
    the results that it brings up to date.

      dvc repro && fewtune record
      fewtune record squeezenet
    """
    _only_models(command)


def report(command: _Parser) -> None:
    """Show the results on disk.

    Show the results table again, from what the stages wrote.

      fewtune report
      fewtune report squeezenet --kernels
      fewtune report --markdown > results.md
      fewtune report squeezenet --html
    """
    _only_models(command)
    _flag(command, "--kernels", "and each result's kernels")
    _flag(command, "--wide", _WIDE)
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="as markdown")
    _json(form)
    form.add_argument("--html", action="store_true", help="as a page that needs no network")
    _told(command)
    _file(command, "--output", "FILE", "for the page (default .fewtune/report/MODEL.html)")


def compare(command: _Parser) -> None:
    """Show recorded results side by side, from MLflow.

    Compare two or more results recorded in MLflow, with their conditions. A model
    stands for the latest result of each of its strategies; with one strategy, for
    its latest two.

      fewtune compare squeezenet                   selective against full
      fewtune compare squeezenet-selective 4f2a91c0
    """
    named = "a model, a run's name, id or its beginning"
    command.add_argument("results", nargs="+", metavar="MODEL|RUN", help=named)
    _json(command)
    _told(command)


def watch(command: _Parser) -> None:
    """Compare the latest results with those before, and fail if one is slower.

    Put the latest recorded result of each model beside the one before it, of the
    same machine and strategy, with the noise of both. Ends with code 6 if one is
    slower by more than the noise, and says which settings and versions changed and
    which kernels are slower. Writes a page of all results over time.

      fewtune run --force && fewtune watch
      fewtune watch squeezenet --page fleet
      fewtune watch --fleet                     every machine in MLflow
    """
    _only_models(command)
    _flag(command, "--fleet", "results of every machine, not of this one only")
    _flag(command, "--wide", _WIDE)
    _json(command)
    _told(command)
    _file(command, "--page", "DIR", "for fleet.md and fleet.png (default .fewtune/fleet)")


def log(command: _Parser) -> None:
    """Merge tuning logs, or keep the best of one, for a later run to start from.

    Write the tuning records of one log or of several into another. A log is a
    folder with log.json and TVM's two database files. Logs of different machines,
    targets, thread counts, TVM versions or ways of measuring are refused.

      fewtune log out/squeezenet/selective/share --best 5 --output logs/squeezenet
      fewtune log out/*/full/share --output all

    What lies under logs/ (tune.start_from) is tried first by the next run.
    """
    command.add_argument("logs", nargs="+", metavar="LOG", help="folder of a log")
    command.add_argument("--output", required=True, metavar="DIR", help="a folder to be made")
    _count(command, "--best", "K", "keep the K fastest of each workload (all)")


def bank(command: _Parser) -> None:
    """Hand tuned schedules to another machine of the same kind, as one file.

    Write the best schedules of the logs below bank/ into one file, or read such a
    file. A file of another machine, target, thread count, TVM version or way of
    measuring is refused.

      fewtune bank export zoo.bank --licence CC0-1.0
      fewtune bank import zoo.bank
      fewtune run MODEL --set build_bank.selective.logs=bank
    """
    kinds = command.add_subparsers(dest="action", metavar="export|import", required=True)
    export = kinds.add_parser("export", help="write a file")
    export.add_argument("file", metavar="FILE", help="to be made")
    export.add_argument("--logs", default="bank", metavar="DIR", help="folder of logs (bank)")
    licence = "what it may be used for"
    export.add_argument("--licence", default="not stated", metavar="NOTE", help=licence)
    _count(export, "--best", "K", "schedules a workload (8)", 8)
    taken = kinds.add_parser("import", help="read a file into bank/NAME")
    taken.add_argument("file", metavar="FILE")
    _file(taken, "--name", "NAME", "folder below bank/; the file's name")


def predictor(command: _Parser) -> None:
    """Train, list or describe predictors, which rate schedules before they are made.

    A predictor is trained on models that were tuned in full, or on samples kept of
    such.

      fewtune predictor train practice_{1..16} --output predictors/mine
      fewtune predictor list
      fewtune predictor info epyc
      fewtune run MODEL --set tune.predictor=predictors/mine
    """
    kinds = command.add_subparsers(dest="action", metavar="train|list|info", required=True)
    train = kinds.add_parser("train", help="train one")
    train.add_argument("models", nargs="*", metavar="MODEL", help="tuned in full here")
    _several(train, "--samples", "FILE", "kept earlier")
    _file(train, "--keep", "FILE", "keep what is learnt from, as .npz")
    train.add_argument("--output", required=True, metavar="PATH", help="such as predictors/mine")
    known = kinds.add_parser("list", help="those that come with fewtune, and of predictors/")
    _json(known)
    _told(known)
    about = kinds.add_parser("info", help="what one was trained on")
    about.add_argument("name", metavar="NAME", help="of the list, or a path without its ending")


def bundle(command: _Parser) -> None:
    """Write a library with all that runs it, for a machine without fewtune and TVM.

    Write a model's library, TVM's runtime, a loader for Python (NumPy only), a
    header and an example for C++, and licenses: 6 MB beside the library.

      fewtune bundle squeezenet
      fewtune bundle squeezenet --to squeezenet.tar.gz
      fewtune bundle model.so --to /srv/detector
    """
    _file(command, "model", "MODEL", "a model with a result, or a library's path")
    place = "a folder, or a file that ends in .tar.gz, not there yet (default MODEL-bundle)"
    _file(command, "--to", "PATH", place)
    command.add_argument("--strategy", default="selective", help="of the result (selective)")


def worker(command: _Parser) -> None:
    """Let this machine measure for a fleet.

    Run a Dask worker with one device, until interrupted. It runs whatever the
    scheduler's clients send: connect it to machines that you trust only. Further
    options go to Dask's worker.

      dask scheduler --host 192.168.1.2                       on one machine
      fewtune worker tcp://192.168.1.2:8786                   on each that measures
      fewtune run squeezenet --cluster tcp://192.168.1.2:8786
    """
    command.add_argument("scheduler", metavar="ADDRESS", help="tcp://HOST:8786, or tls://...")
    further = "of `dask worker`, such as --tls-ca-file FILE --tls-cert FILE --tls-key FILE"
    command.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help=further)


def serve(command: _Parser) -> None:
    """Run on a schedule, without a work pool.

    Serve the deployments of prefect.yaml in this process until interrupted. Starts
    a Prefect server on 127.0.0.1, with its page, unless PREFECT_API_URL is set. The
    page asks for the name and password in .fewtune/prefect-auth.

      fewtune serve                     nightly, as prefect.yaml says
      fewtune serve --cron '0 */6 * * *'
    """
    command.add_argument("--cron", help="instead of the schedules of prefect.yaml")
    command.add_argument("--port", type=int, default=4200, help="of the server (default 4200)")


def ui(command: _Parser) -> None:
    """Open the recorded results: MLflow's page on 127.0.0.1.

    Serve MLflow's page on 127.0.0.1 until interrupted. It asks for the name and
    password in .fewtune/mlflow-auth. Leave it off while something is measured.

      fewtune ui
      fewtune ui --port 5001
    """
    command.add_argument("--port", type=int, default=5000, help="(default 5000)")


# By the module of `pipelines.commands` that carries them out.
_COMMANDS = {
    "init": (init,),
    "models": (check, add),
    "run": (run, record),
    "results": (report, compare, watch),
    "files": (info, bundle, log, bank),
    "predictor": (predictor,),
    "services": (worker, serve, ui),
}
