"""`tilewright show`: the text of a function at any stage of the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tilewright.cli.flags import Flags
from tilewright.cli.loading import find_target
from tilewright.cli.report import Report

if TYPE_CHECKING:
    from rich.console import Console

Stage = Literal["array", "tile", "scheduled", "llvm", "ptx", "sass", "cpp", "asm"]

# Pygments has no lexer for the IR's generic form; LLVM's colours types, symbols and numbers alike.
_LEXERS: dict[str, str] = dict.fromkeys(("ptx", "sass", "asm"), "gas") | {"cpp": "cpp"}


def show(
    function: str,
    /,
    *,
    stage: Stage = "tile",
    arguments: Annotated[str | None, Parameter(name="--args")] = None,
    flags: Flags | None = None,
) -> Report:
    """Print a function as the compiler sees it at a stage.

    For example:

        tilewright show model.py::attention --args '(8, 128, 64):f32, (8, 128, 64):f32, (8, 128, 64):f32'
        tilewright show examples/kernels/matmul.py::matmul --stage asm --target cpu:x86-64-v3
        tilewright show examples/kernels/matmul.py::matmul --stage sass --target cuda:sm_90a
        tilewright show examples/kernels/matmul.py::matmul --stage cpp --target grid:wormhole

    Parameters
    ----------
    function
        FILE::NAME of a `tw.jit` function or a `tw.kernel`.
    stage
        After which phase: array program, tile kernels, scheduled kernels, LLVM IR or assembly; PTX or SASS of a GPU;
        C++ of a grid of cores.
    arguments
        What to compile for, as '(SIZES):TYPE, ..., name=value'. Without it, the file's EXAMPLE_ARGUMENTS.
    """
    found = find_target(function, arguments)
    compiled = found.lower().compile(flags.target if flags is not None else None)
    text = compiled.asm() if stage == "asm" else compiled.ir(stage)
    document = {"file": str(found.file), "name": found.name, "target": compiled.target, "stage": stage, "text": text}
    return Report(document, lambda console: _show(console, text, stage))


def _show(console: Console, text: str, stage: str) -> None:
    if not console.is_terminal or console.no_color:
        console.out(text.rstrip("\n"), highlight=False)
        return
    from rich.syntax import Syntax

    console.print(
        Syntax(text, _LEXERS.get(stage, "llvm"), theme="ansi_dark", background_color="default", word_wrap=True)
    )
