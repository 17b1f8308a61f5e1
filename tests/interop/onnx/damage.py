"""Models with parts changed at random, which must give an error or a result, never a crash.

    python -m tests.interop.onnx.damage --count 1000 --seed 0

Bytes of the file are changed, or fields of its messages. Each model is loaded and traced for its test's inputs, which
finds what is malformed; it is run only where nodes of it run on the host.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import time
import traceback
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tests.interop.onnx.cases import cases
from tilewright.errors import CompilerBug, TilewrightError, VerificationError

_SLOW_S = 10.0


def damaged(data: bytes, random_: random.Random) -> Any:
    """A model with some of its bytes, or one of its fields, changed."""
    if random_.random() < 0.4:
        changed = bytearray(data)
        for _ in range(random_.randint(1, 8)):
            changed[random_.randrange(len(changed))] = random_.randrange(256)
        return bytes(changed[: random_.randint(1, len(changed))] if random_.random() < 0.1 else changed)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(random_.randint(1, 3)):
        _change(model, random_)
    return model


def _change(model: Any, random_: random.Random) -> None:
    node = random_.choice(model.graph.node)
    choice = random_.randrange(7)
    if choice == 0 and node.attribute:
        attribute = random_.choice(node.attribute)
        attribute.i = random_.choice([-(2**63), -5, -1, 0, 1, 7, 2**31, 2**62])
        if attribute.ints:
            attribute.ints[random_.randrange(len(attribute.ints))] = random_.choice([-(2**40), -1, 0, 3, 2**40])
    elif choice == 1 and node.attribute:
        random_.choice(node.attribute).type = random_.randrange(15)
    elif choice == 2 and node.attribute:
        del node.attribute[random_.randrange(len(node.attribute))]
    elif choice == 3 and node.input:
        node.input[random_.randrange(len(node.input))] = random_.choice(["", "nothing", *node.output, *node.input])
    elif choice == 4:
        node.op_type = random_.choice(
            ["Add", "Reshape", "Conv", "Loop", "Concat", "Slice", "Nothing", "Resize", "LSTM", "Unique", "StringConcat"]
        )
    elif choice == 5 and model.graph.initializer:
        tensor = random_.choice(model.graph.initializer)
        tensor.dims.append(random_.choice([-1, 0, 2, 2**40]))
    else:
        node.input.append(random_.choice(["", *node.input]))


def outcome(source: Any, inputs: list[Any]) -> str:
    """The class of the error, "traced", or "run"."""
    start = time.perf_counter()
    try:
        model = tw.from_onnx(source, target="interp")
        if model.host_nodes:
            model(*inputs)
        else:
            model.lower(*inputs)
    except (CompilerBug, VerificationError):
        raise
    except TilewrightError as error:
        result = type(error).__name__
    else:
        result = "run" if model.host_nodes else "traced"
    took = time.perf_counter() - start
    return result if took < _SLOW_S else f"slow ({result})"


def subjects() -> list[tuple[str, bytes, list[Any]]]:
    """Small models of the backend tests with their inputs, and one in parts of every tenth."""
    found = [case for case in cases("node") if case.data_sets and len(case.model.SerializeToString()) < 4000]
    given = [(case.name, case.model.SerializeToString(), list(case.data_sets[0][0])) for case in found]
    return given + [_in_parts()] * (len(given) // 10)


def _in_parts() -> tuple[str, bytes, list[Any]]:
    """A model of programs before and after nodes on the host."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("Unique", ["positive"], ["values", "", "places"], sorted=1),
        helper.make_node("Cast", ["places"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["values", "column"], ["rows"]),
        helper.make_node("Mul", ["rows", "numbers"], ["product"]),
        helper.make_node("StringNormalizer", ["text"], ["loud"], case_change_action="UPPER", stopwords=["cat"]),
        helper.make_node("Equal", ["loud", "known"], ["same"]),
        helper.make_node("Where", ["same", "product", "numbers"], ["y"]),
    ]
    constants = [numpy_helper.from_array(np.array([-1, 1]), "column")]
    constants.append(numpy_helper.from_array(np.array(["DOG"], object), "known"))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("text", TensorProto.STRING, ["m"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "parts", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    arrays = [np.array([1, -2, 1, 3], np.float32), np.array(["cat", "dog"])]
    return "parts", model.SerializeToString(), arrays


def _stop(number: int, frame: Any) -> None:
    traceback.print_stack(frame, limit=6)
    raise Hung


class Hung(BaseException):
    """A model took too long; no handler of errors may take it for one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    models = subjects()
    signal.signal(signal.SIGALRM, _stop)
    counts: collections.Counter[str] = collections.Counter()
    for n in range(given.seed, given.seed + given.count):
        random_ = random.Random(n)
        name, data, inputs = random_.choice(models)
        signal.alarm(int(_SLOW_S))
        try:
            with np.errstate(all="ignore"):
                counts[outcome(damaged(data, random_), inputs)] += 1
        except (Exception, Hung) as error:
            counts[f"escaped: {type(error).__name__}"] += 1
            print(f"seed {n}, {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
