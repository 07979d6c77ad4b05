"""Malformed models, each through ``fewtune check``: a sentence and a documented code, always.

Files are made from one small network: cut short, bits flipped, of wrong types, with cycles, sizes
of zero or far too large, external data outside of their folder, and so on. A run is good where the
command ends by itself within its limit, with a code that its help lists, without a traceback, and
where it refuses with one line of reason. Prints a line a model; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fewtune.machine.fingerprint import FingerprintOptions, detect_fingerprint

CODES = frozenset({0, 2, 3, 4})
LIMIT_S = 240
_FLOAT = TensorProto.FLOAT


class Case(NamedTuple):
    """A malformed model.

    Attributes
    ----------
    name : str
    write : callable
        Writes it into a folder and gives the path to check.
    may_pass : bool
        Whether it may be accepted: not every fault leaves a model without a meaning.
    """

    name: str
    write: Callable[[Path], Path]
    may_pass: bool = False


class Result(NamedTuple):
    """What came of one case; ``fault`` is empty where all is as it should be."""

    name: str
    code: int
    seconds: float
    said: str
    fault: str


def network() -> ModelProto:
    """A convolution, an activation, a mean and a product, with seeded weights."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(generator.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="mean"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "v", "u"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", _FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", _FLOAT, [1, 5])],
        [weight("w", 8, 3, 3, 3), weight("b", 8), weight("v", 8, 5), weight("u", 5)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _edited(edit: Callable[[ModelProto], None]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model = network()
        edit(model)
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


def _bytes(content: Callable[[bytes], bytes], name: str = "model.onnx") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content(network().SerializeToString()))
        return path

    return write


def _flipped(content: bytes, seed: int, count: int) -> bytes:
    generator = np.random.default_rng(seed)
    flipped = bytearray(content)
    for place in generator.integers(0, len(flipped), count):
        flipped[place] ^= 1 << int(generator.integers(0, 8))
    return bytes(flipped)


def _weight(model: ModelProto, name: str) -> TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def _set_weight(model: ModelProto, name: str, array: np.ndarray) -> None:
    _weight(model, name).CopyFrom(numpy_helper.from_array(array, name))


def _set_input(model: ModelProto, element_type: int, shape: Sequence[int | str | None]) -> None:
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", element_type, shape))


def _external(location: str, **entries: str) -> Callable[[Path], Path]:
    """Weights that claim to lie in another file."""

    def edit(model: ModelProto) -> None:
        tensor = _weight(model, "w")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=value)

    def write(folder: Path) -> Path:
        (folder / "weights.bin").write_bytes(bytes(8 * 3 * 3 * 3 * 4))
        (folder / "link.bin").symlink_to("/etc/hostname")
        (folder / "short.bin").write_bytes(b"short")
        (folder / "folder.bin").mkdir()
        os.mkfifo(folder / "pipe.bin")
        return _edited(edit)(folder)

    return write


def _cycle(model: ModelProto) -> None:
    model.graph.node[1].input[0] = "p"


def _self_cycle(model: ModelProto) -> None:
    model.graph.node[1].input[0] = "r"


def _recursion(model: ModelProto) -> None:
    """A function of the model that calls itself."""
    body = [helper.make_node("Again", ["a"], ["z"], domain="own")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["z"], body, opsets)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[1].CopyFrom(
        helper.make_node("Again", ["c"], ["r"], domain="own", name="again")
    )


def _mutual_recursion(model: ModelProto) -> None:
    """Two functions of the model that call each other."""
    _recursion(model)
    model.functions[0].node[0].op_type = "Other"
    other = onnx.FunctionProto()
    other.CopyFrom(model.functions[0])
    other.name, other.node[0].op_type = "Other", "Again"
    model.functions.append(other)


def _branches(model: ModelProto, depth: int = 1, condition: str = "x") -> None:
    """Nested branches, whose condition is no truth value."""

    def nested(level: int) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"o{level}", _FLOAT, None)
        if level == depth:
            nodes = [helper.make_node("Identity", ["c"], [f"o{level}"])]
        else:
            inner = nested(level + 1)
            nodes = [
                helper.make_node(
                    "If", [condition], [f"o{level}"], then_branch=inner, else_branch=inner
                )
            ]
        return helper.make_graph(nodes, f"level{level}", [], [output])

    branch = nested(0)
    model.graph.node[1].CopyFrom(
        helper.make_node(
            "If", [condition], ["r"], name="if", then_branch=branch, else_branch=branch
        )
    )


def _endless_loop(model: ModelProto) -> None:
    """A loop of 2**40 steps."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["s"], ["t"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("s", _FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("t", _FLOAT, None),
        ],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.int64(2**40), "trips"))
    model.graph.node[1].CopyFrom(
        helper.make_node("Loop", ["trips", "", "c"], ["r"], name="loop", body=body)
    )


def _remove_weight(model: ModelProto) -> None:
    model.graph.initializer.remove(_weight(model, "w"))


def _wrong_dims(model: ModelProto) -> None:
    _weight(model, "w").dims[0] = 80


def _short_data(model: ModelProto) -> None:
    tensor = _weight(model, "w")
    tensor.raw_data = tensor.raw_data[:-4]


def _negative_dims(model: ModelProto) -> None:
    _weight(model, "w").dims[0] = -8


def _huge_dims(model: ModelProto) -> None:
    _weight(model, "w").dims[0] = 2**62


def _huge_constant(model: ModelProto) -> None:
    """A constant of 4 TB that a few bytes ask for."""
    shape = numpy_helper.from_array(np.array([1, 8, 2**20, 2**17], np.int64), "size")
    model.graph.initializer.append(shape)
    model.graph.node[1].CopyFrom(helper.make_node("Expand", ["c", "size"], ["r"], name="expand"))


def _huge_pad(model: ModelProto) -> None:
    model.graph.node[0].attribute[0].ints[:] = [2**30] * 4


def _wide_input(model: ModelProto) -> None:
    _set_input(model, _FLOAT, [1, 3, 2**20, 2**20])


def _rank_mismatch(model: ModelProto) -> None:
    _set_input(model, _FLOAT, [1, 3, 8])


def _strings(model: ModelProto) -> None:
    _set_input(model, TensorProto.STRING, [1, 3, 8, 8])


def _complex(model: ModelProto) -> None:
    _set_input(model, TensorProto.COMPLEX64, [1, 3, 8, 8])


def _no_type(model: ModelProto) -> None:
    model.graph.input[0].ClearField("type")


def _unknown_type(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 99


def _nan(model: ModelProto) -> None:
    _set_weight(model, "u", np.array([0, np.nan, 1, 2, 3], np.float32))


def _infinite(model: ModelProto) -> None:
    _set_weight(model, "u", np.array([0, np.inf, 1, 2, 3], np.float32))


def _wrong_weight_type(model: ModelProto) -> None:
    _set_weight(model, "w", np.ones((8, 3, 3, 3), np.int32))


def _all_zero(model: ModelProto) -> None:
    for tensor in list(model.graph.initializer):
        _set_weight(model, tensor.name, np.zeros(tuple(tensor.dims), np.float32))


def _opset(version: int) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        model.opset_import[0].version = version

    return edit


def _node(place: int, **changes: object) -> Callable[[ModelProto], None]:
    """Change a node's fields: op_type, domain, inputs, outputs, attributes."""

    def edit(model: ModelProto) -> None:
        node = model.graph.node[place]
        for key, value in changes.items():
            if key in ("input", "output"):
                del getattr(node, key)[:]
                getattr(node, key).extend(value)
            elif key == "attribute":
                del node.attribute[:]
                node.attribute.extend(
                    helper.make_attribute(name, each) for name, each in dict(value).items()
                )
            else:
                setattr(node, key, value)

    return edit


def _do(*edits: Callable[[ModelProto], object]) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        for each in edits:
            each(model)

    return edit


def _long_name(model: ModelProto) -> None:
    """A name of a hundred thousand letters."""
    name = "n" * 100_000
    model.graph.node[1].output[0] = name
    model.graph.node[2].input[0] = name


def _files() -> Iterator[Case]:
    yield Case("empty_file", _bytes(lambda _: b""))
    yield Case("one_byte", _bytes(lambda _: b"\x08"))
    yield Case("text", _bytes(lambda _: b"this is no model\n" * 20))
    yield Case("zeros", _bytes(lambda _: bytes(4096)))
    yield Case("pickle", _bytes(lambda _: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}."))
    yield Case("zip", _bytes(lambda _: b"PK\x03\x04" + bytes(100)))
    yield Case("twice", _bytes(lambda content: content * 2), may_pass=True)
    yield Case("tail_of_text", _bytes(lambda content: content + b"tail"))
    yield Case("text_model", _bytes(lambda _: b'ir_version: 9 graph { name: "g" }'))
    for share in (5, 25, 50, 75, 99):
        yield Case(
            f"cut_at_{share}",
            _bytes(lambda content, share=share: content[: len(content) * share // 100]),
        )
    for seed in range(8):
        yield Case(
            f"flipped_{seed}",
            _bytes(lambda content, seed=seed: _flipped(content, seed, 1 + 3 * seed)),
            may_pass=True,
        )
    yield Case("missing", lambda folder: folder / "missing.onnx")
    yield Case("a_folder", lambda folder: folder)
    yield Case("broken_link", _broken_link)
    yield Case("a_pipe", _pipe)


def _broken_link(folder: Path) -> Path:
    path = folder / "link.onnx"
    path.symlink_to(folder / "nowhere.onnx")
    return path


def _pipe(folder: Path) -> Path:
    path = folder / "pipe.onnx"
    os.mkfifo(path)
    return path


def _graphs() -> Iterator[Case]:
    yield Case("no_graph", _edited(lambda model: model.ClearField("graph")))
    yield Case("no_nodes", _edited(lambda model: model.graph.ClearField("node")))
    yield Case("no_inputs", _edited(lambda model: model.graph.ClearField("input")))
    yield Case("no_outputs", _edited(lambda model: model.graph.ClearField("output")))
    yield Case("no_opset", _edited(lambda model: model.ClearField("opset_import")))
    yield Case("no_weights", _edited(lambda model: model.graph.ClearField("initializer")))
    yield Case("missing_weight", _edited(_remove_weight))
    yield Case("cycle", _edited(_cycle))
    yield Case("cycle_of_one", _edited(_self_cycle))
    yield Case("output_twice", _edited(_node(1, output=["c"])))
    yield Case("output_is_input", _edited(_node(1, output=["x"])))
    yield Case("output_is_weight", _edited(_node(1, output=["w"])))
    yield Case(
        "weight_twice",
        _edited(lambda model: model.graph.initializer.append(_weight(model, "w"))),
    )
    yield Case("input_twice", _edited(lambda model: model.graph.input.append(model.graph.input[0])))
    yield Case(
        "output_listed_twice",
        _edited(lambda model: model.graph.output.append(model.graph.output[0])),
    )
    yield Case("output_of_nothing", _edited(_node(4, output=["z"])))
    yield Case("unknown_operator", _edited(_node(1, op_type="Frobnicate")))
    yield Case("unknown_domain", _edited(_node(1, domain="org.example")))
    yield Case("no_operator", _edited(_node(1, op_type="")))
    yield Case("too_few_inputs", _edited(_node(0, input=["x"])))
    yield Case("too_many_inputs", _edited(_node(1, input=["c"] * 5)))
    yield Case("empty_input", _edited(_node(0, input=["", "w", "b"])))
    yield Case("long_name", _edited(_long_name), may_pass=True)
    yield Case(
        "name_of_nul",
        _edited(_do(_node(1, output=["a\0b"]), _node(2, input=["a\0b"]))),
        may_pass=True,
    )
    for version in (0, -3, 999, 2**62):
        yield Case(f"opset_{version}", _edited(_opset(version)))
    yield Case("ir_of_the_future", _edited(lambda model: setattr(model, "ir_version", 10**6)))
    yield Case("recursion", _edited(_recursion))
    yield Case("mutual_recursion", _edited(_mutual_recursion))
    yield Case("branch_of_floats", _edited(_branches))
    yield Case(
        "branches_8_deep", _edited(lambda model: _branches_of_truth(model, 8)), may_pass=True
    )
    yield Case("endless_loop", _edited(_endless_loop))


def _branches_of_truth(model: ModelProto, depth: int) -> None:
    truth = numpy_helper.from_array(np.array(True), "truth")
    model.graph.initializer.append(truth)
    _branches(model, depth, "truth")


def _values() -> Iterator[Case]:
    yield Case("wrong_dims", _edited(_wrong_dims))
    yield Case("short_data", _edited(_short_data))
    yield Case("negative_dims", _edited(_negative_dims))
    yield Case("huge_dims", _edited(_huge_dims))
    yield Case("huge_constant", _edited(_huge_constant))
    yield Case("huge_pad", _edited(_huge_pad))
    yield Case("wide_input", _edited(_wide_input))
    yield Case("negative_input", _edited(lambda model: _set_input(model, _FLOAT, [1, 3, -8, 8])))
    yield Case("empty_axis", _edited(lambda model: _set_input(model, _FLOAT, [1, 3, 0, 8])))
    yield Case("open_axes", _edited(lambda model: _set_input(model, _FLOAT, ["?", 3, "?", None])))
    yield Case("rank_mismatch", _edited(_rank_mismatch))
    yield Case("strings", _edited(_strings))
    yield Case("complex", _edited(_complex))
    yield Case("no_type", _edited(_no_type))
    yield Case("unknown_type", _edited(_unknown_type))
    yield Case("nan_weight", _edited(_nan))
    yield Case("infinite_weight", _edited(_infinite), may_pass=True)
    yield Case("weights_of_integers", _edited(_wrong_weight_type))
    yield Case("all_zero", _edited(_all_zero))
    yield Case("zero_stride", _edited(_node(0, attribute={"strides": [0, 0]})))
    yield Case("negative_stride", _edited(_node(0, attribute={"strides": [-1, -1]})))
    yield Case("zero_groups", _edited(_node(0, attribute={"group": 0})))
    yield Case("text_for_number", _edited(_node(0, attribute={"group": "two"})))
    yield Case("number_for_list", _edited(_node(0, attribute={"pads": 1})))
    yield Case("unknown_attribute", _edited(_node(0, attribute={"colour": "red"})))
    yield Case("axis_out_of_range", _edited(_node(3, attribute={"axis": 9})))


def _elsewhere() -> Iterator[Case]:
    yield Case("data_missing", _external("nowhere.bin"))
    yield Case("data_above", _external("../weights.bin"))
    yield Case("data_absolute", _external("/etc/hostname"))
    yield Case("data_link", _external("link.bin"))
    yield Case("data_folder", _external("folder.bin"))
    yield Case("data_pipe", _external("pipe.bin"))
    yield Case("data_short", _external("short.bin"))
    yield Case("data_nul", _external("weights.bin\0/etc/hostname"))
    yield Case("data_no_name", _external(""))
    yield Case("data_offset_negative", _external("weights.bin", offset="-8"))
    yield Case("data_offset_text", _external("weights.bin", offset="eight"))
    yield Case("data_length_huge", _external("weights.bin", length=str(2**60)))


def cases() -> list[Case]:
    """Every malformed model."""
    return [*_files(), *_graphs(), *_values(), *_elsewhere()]


def judged(case: Case, code: int, output: str, errors: str, seconds: float = 0.0) -> Result:
    """Judge how the command ended on a case."""
    fault, reason = "", ""
    try:
        report = json.loads(output)
        reason = report["reason"] or ""
    except (ValueError, KeyError, TypeError):
        report = None
    if code < 0:
        fault = f"died of signal {-code}"
    elif code not in CODES:
        fault = f"ended with {code}, which is not documented"
    elif "Traceback" in errors or "Traceback" in output:
        fault = "printed a traceback"
    elif report is None:
        fault = "printed no JSON"
    elif report["ok"] != (code == 0):
        fault = f"ended with {code}, but says ok: {report['ok']}"
    elif code == 0 and not case.may_pass:
        fault = "was accepted"
    elif code != 0 and (not reason.strip() or "\n" in reason):
        fault = "gave no reason of one line"
    said = reason or errors.strip().splitlines()[-1:] or ""
    return Result(case.name, code, round(seconds, 1), str(said)[:300], fault)


def check_case(case: Case) -> Result:
    """Put one case through the command."""
    with tempfile.TemporaryDirectory(prefix="malformed-") as scratch:
        path = case.write(Path(scratch))
        command = [sys.executable, "-m", "pipelines.cli", "check", str(path), "--json"]
        began_s = time.perf_counter()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Result(case.name, -1, LIMIT_S, "", f"still running after {LIMIT_S} s")
        seconds = time.perf_counter() - began_s
    return judged(case, done.returncode, done.stdout, done.stderr, seconds)


def check_case_warm(case: Case) -> Result:
    """Put one case through what the command calls, in a fork of this process.

    The process must have no thread of TVM's or onnxruntime's: it imports, and forks.
    """
    from fewtune.model_check.check import check_here
    from fewtune.model_check.job import CheckJob

    with tempfile.TemporaryDirectory(prefix="malformed-") as scratch:
        path, said = case.write(Path(scratch)), Path(scratch) / "report.json"
        errors = Path(scratch) / "errors.txt"
        began_s = time.perf_counter()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                silent = os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(silent, 1)
                os.dup2(silent, 2)
                report = check_here(CheckJob(path).as_json())
                said.write_text(json.dumps(report))
                code = report["exit_code"]
            except BaseException:  # noqa: BLE001 (what the command would print)
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.perf_counter() - began_s > LIMIT_S:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        seconds = time.perf_counter() - began_s
        output = said.read_text() if said.is_file() else ""
        code = os.waitstatus_to_exitcode(ended[1])
        return judged(case, code, output, errors.read_text(errors="replace"), seconds)


def main() -> None:
    """Check all, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="+", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--warm", action="store_true", help="fork a process that has all loaded: faster, no command"
    )
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    chosen = [case for case in cases() if case.name in (arguments.case or [case.name])]
    results = []
    with ThreadPoolExecutor(arguments.processes) as pool:
        warm = arguments.warm
        if warm:
            detect_fingerprint(FingerprintOptions())
        for result in map(check_case_warm, chosen) if warm else pool.map(check_case, chosen):
            results.append(result)
            verdict = f"FAULT: {result.fault}" if result.fault else f"code {result.code}"
            print(f"{result.name:22} {verdict:12} {result.seconds:5.1f} s  {result.said}")
            sys.stdout.flush()
    faults = [result for result in results if result.fault]
    summary = {"models": len(results), "as they should": len(results) - len(faults)}
    summary["faults"] = len(faults)
    if arguments.output:
        lines = [result._asdict() for result in results]
        arguments.output.write_text(json.dumps(summary | {"results": lines}, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
