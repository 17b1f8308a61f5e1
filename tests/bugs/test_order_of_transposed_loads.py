"""A nest that transposes several blocks of loads: they stand in the order of the program, wherever objects lie in
memory, so that a program is compiled to the same code each time."""

from __future__ import annotations

import numpy as np

import tilewright as tw


def test_the_same_program_becomes_the_same_code():
    arguments = [np.ones((96, 128), np.float32)] * 3
    kept: list[object] = []
    texts: set[str] = set()
    for _ in range(6):
        compiled = tw.jit(lambda a, b, c: a.T + b.T - c.T).lower(*arguments).compile(target="cpu")
        texts.add(compiled.ir("llvm"))
        # What is kept makes the next objects lie elsewhere.
        kept.append(compiled)
    assert len(texts) == 1
