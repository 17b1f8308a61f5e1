"""What importing the package costs and shows."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
from tilewright.api.pytree import build, flatten, paths
from tilewright.interop import importers

HEAVY = ("xdsl", "llvmlite", "torch", "jax", "ml_dtypes", "rich", "cyclopts")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_and_tracing_load_nothing_heavy():
    loaded = f"import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(f"import tilewright; {loaded}") == "[]"
    trace = "f = tw.jit(lambda x: tw.nn.softmax(x @ x)); f.lower(np.ones((2, 2), np.float32))"
    assert python(f"import numpy as np, tilewright as tw; {trace}; {loaded}") == "[]"


def test_importing_is_quick():
    timed = "import time, numpy; start = time.process_time(); import tilewright; print(time.process_time() - start)"
    assert any(float(python(timed)) < 0.1 for _ in range(10))


def test_public_names():
    names = [*tw.api.__all__, *importers.__all__]
    assert len(names) == len(set(names))
    for name in names:
        value = getattr(tw, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, name
    assert {"jit", "nn", "options", "f32", "Array"} <= set(dir(tw))
    assert callable(tw.options)
    with pytest.raises(AttributeError, match="no attribute 'softmaxx'"):
        _ = tw.softmaxx
    for name in tw.nn.__all__:
        assert getattr(tw.nn, name).__doc__


def test_everything_can_be_imported_at_once():
    names: dict[str, object] = {}
    exec("from tilewright import *", names)
    assert set(tw.api.__all__) | set(importers.__all__) | {"options"} == set(names) - {"__builtins__"}
    assert names["sum"] is tw.sum
    assert names["options"] is tw.options
    loaded = "import sys, tilewright; print('tilewright.api' in sys.modules)"
    assert python(loaded) == "False"


def test_paths_and_order_of_containers():
    tree = {"b": (1, [2, None]), "a": {"x": 3, 4: 5}}
    leaves: list[object] = []
    structure = flatten(tree, leaves)
    assert dict(zip(paths(structure, "t"), leaves, strict=True)) == {
        "t['a']['x']": 3,
        "t['a'][4]": 5,
        "t['b'][0]": 1,
        "t['b'][1][0]": 2,
    }
    assert build(structure, leaves) == tree
    assert str(structure) == "{'a': {'x': *, 4: *}, 'b': (*, [*, None])}"
    assert flatten((np.ones(1),), []) == flatten((np.zeros(2),), [])
    assert flatten([1], []) != flatten((1,), [])
