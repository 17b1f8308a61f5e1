"""Each function of a file was looked for among all nodes of the file's tree: 290 kernels took 22 seconds to declare."""

from __future__ import annotations

import ast
import linecache
from typing import Any

import numpy as np
import pytest


def test_a_file_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import tilewright as tw"]
    for n in range(40):
        lines += ["@tw.kernel", f'def copy_{n}(x: tw.In["N"], y: tw.Out["N"]):']
        lines += ["    for i in tw.grid(x, 4):", f"        y[i] = x[i] + {n}"]
    file = "<many kernels>"
    linecache.cache[file] = (0, None, [line + "\n" for line in lines], file)
    names: dict[str, Any] = {"__name__": "cell"}
    whole: list[ast.AST] = []
    walk = ast.walk

    def counted(node: ast.AST) -> Any:
        if isinstance(node, ast.Module):
            whole.append(node)
        return walk(node)

    monkeypatch.setattr(ast, "walk", counted)
    exec(compile("\n".join(lines), file, "exec"), names)
    assert len(whole) == 1
    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    for n in (0, 39):
        names[f"copy_{n}"](x, y)
        np.testing.assert_array_equal(y, x + n)
