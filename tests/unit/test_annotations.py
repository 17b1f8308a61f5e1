"""`Any` in signatures: how many parameters and results of the package have no type. The number may only fall."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tilewright"
LIMIT = 1049


def annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """The annotations of the parameters and of the result of a function."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (each.annotation for each in every if each is not None and each.annotation is not None)
    if node.returns is not None:
        yield node.returns


def uses_of_any(text: str) -> int:
    """The number of names `Any` in the signatures of all functions of a module."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = [name for function in functions for each in annotations(function) for name in ast.walk(each)]
    return sum(isinstance(name, ast.Name) and name.id == "Any" for name in names)


def by_file() -> Counter[str]:
    """The number of uses in each file of the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return Counter({str(path.relative_to(PACKAGE)): uses_of_any(path.read_text()) for path in paths})


def test_uses_of_any_do_not_rise() -> None:
    found = by_file()
    assert found.total() <= LIMIT, found.most_common(20)
    assert found.total() > LIMIT - 20, f"lower LIMIT to {found.total()}"


def test_what_is_counted() -> None:
    assert uses_of_any("def f(x: Any, *y: list[Any], z: int = 0, **w: Any) -> dict[str, Any]: ...") == 4
    assert uses_of_any("class C:\n    x: Any\n    def f(self) -> Any:\n        y: Any = self.x\n        return y") == 1
    assert uses_of_any("async def f(x: Callable[..., Any], /) -> None: ...") == 1


if __name__ == "__main__":
    for file, count in by_file().most_common():
        print(f"{count:5} {file}")
    print(f"{by_file().total():5}")
