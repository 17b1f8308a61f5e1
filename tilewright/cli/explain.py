"""`tilewright explain`: why the tiles of a function have their layouts, and drawings of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tilewright.cli.flags import Flags
from tilewright.cli.loading import find_target
from tilewright.cli.report import Report
from tilewright.errors import ArgumentError, UnknownNameError

if TYPE_CHECKING:
    from tilewright.api.stages import Compiled
    from tilewright.cli.loading import Target
    from tilewright.driver.explain import Unexplained
    from tilewright.layout import Layout
    from tilewright.layout.access import MemoryPorts
    from tilewright.machines.machine import Machine
    from tilewright.passes.layouts.layout_explanation import KernelExplanation, TileExplanation

    Explained = KernelExplanation | Unexplained

_WINDOW = re.compile(r"(?:(\d+):)?(\d+)")


def explain(
    function: str,
    /,
    *,
    machine: str | None = None,
    value: str | None = None,
    draw: Literal["text", "svg"] | None = None,
    rows: str | None = None,
    columns: str | None = None,
    out: Path | None = None,
    arguments: Annotated[str | None, Parameter(name="--args")] = None,
    flags: Flags | None = None,
) -> Report:
    """Explain why the tiles of a function's kernels have their layouts on a machine, and what the next best would cost.

    For a grid of cores, print the decisions for each kernel, its time on the simulator and its bottleneck instead:
    layouts are fixed there.

    For example:

        tilewright explain examples/kernels/flash_attention.py::flash_attention --machine sm_90a --value scores
        tilewright explain examples/kernels/matmul.py::matmul --machine sm_90a --value %9 --draw svg --out a.svg
        tilewright explain examples/kernels/matmul.py::matmul --target grid:wormhole

    Parameters
    ----------
    function
        FILE::NAME of a `tw.jit` function or a `tw.kernel`.
    machine
        A machine file, such as sm_90a. The target's, without it.
    value
        Only the tiles of this name: the one in the source, or a number such as %9 as `show --stage tile` prints it.
        KERNEL/NAME means those of one kernel.
    draw
        Draw the layout of the value instead: which warp, lane and register, or which address and bank, has an element.
    rows
        Rows to draw: how many, or FIRST:END.
    columns
        Columns to draw: how many, or FIRST:END.
    out
        Write the text or drawing to this file.
    arguments
        What to compile for, as '(SIZES):TYPE, ..., name=value'. Without it, the file's EXAMPLE_ARGUMENTS.
    """
    _check(function, draw, value, (rows, columns))
    from tilewright.driver.explain import (
        Unexplained,
        chosen_schedules,
        explain_program,
        explanation_document,
        explanation_text,
        infers_layouts,
        schedules_document,
        schedules_text,
    )

    found = find_target(function, arguments)
    lowered = found.lower()
    target = (flags.target if flags is not None else None) or lowered.target
    if machine is None and not infers_layouts(target):
        return _without_layouts(found, lowered.compile(target), value, out)
    explained = explain_program(lowered.graph, target, machine, value)
    if value is not None:
        explained = _chosen(explained, value)
    schedules = chosen_schedules(lowered.graph, target)
    shown_schedules = schedules_text(schedules) if value is None else ""
    text = "\n\n".join(filter(None, (shown_schedules, explanation_text(explained))))
    document: dict[str, Any] = {"file": str(found.file), "name": found.name, "target": target}
    document |= {"machine": explained[0].machine if explained else machine}
    document |= {"schedules": schedules_document(schedules), "kernels": explanation_document(explained)}
    if draw is not None and value is not None:
        drawn = _one_layout(explained, value)
        text = _drawing(drawn, explained[0].machine, draw, (rows, columns))
        document["drawing"] = {"format": draw, "layout": str(drawn.layout), "text": text}
    if out is not None:
        _write(out, text)
        document["out"] = str(out)
    failed = any(isinstance(each, Unexplained) for each in explained)
    shown = f"wrote {out}" if out is not None else text.rstrip("\n")
    return Report(document, lambda console: console.out(shown, highlight=False), 1 if failed else 0)


def _without_layouts(found: Target, compiled: Compiled, value: str | None, out: Path | None) -> Report:
    """The explanation of a program whose tiles have no layouts.

    Raises:
        ArgumentError: a tile is asked for.
    """
    if value is not None:
        message = f"tiles have no layouts on {compiled.target}, where they are pages in queues"
        raise ArgumentError(message, help="leave out --value, or name another machine with --machine")
    from tilewright.driver.explain import schedules_document

    text, cost = compiled.explain(), compiled.cost()
    document: dict[str, Any] = {"file": str(found.file), "name": found.name, "target": compiled.target}
    document |= {"machine": cost["machine"], "schedules": schedules_document(compiled.schedules)}
    document |= {"kernels": cost["kernels"], "explanation": text}
    if out is not None:
        _write(out, text)
        document["out"] = str(out)
    shown = f"wrote {out}" if out is not None else text
    return Report(document, lambda console: console.out(shown, highlight=False))


def _check(function: str, draw: str | None, value: str | None, windows: tuple[str | None, str | None]) -> None:
    """Refuse flags that do not go together, and saved programs.

    Raises:
        ArgumentError: there are such.
    """
    if function.endswith(".twp"):
        message = f"{function!r} is a saved program, which holds code and no tiles to explain"
        raise ArgumentError(message, help="give the function that it was compiled from, as FILE::NAME")
    if draw is None and windows != (None, None):
        raise ArgumentError("`--rows` and `--columns` need a drawing", help="add --draw text or --draw svg")
    if draw is not None and value is None:
        raise ArgumentError("a drawing is of one tile", help="name it with --value")


def _chosen(explained: Sequence[Explained], value: str) -> list[Explained]:
    """The explanations that contain a tile.

    Raises:
        UnknownNameError: none does.
    """
    from tilewright.driver.explain import Unexplained

    found = [each for each in explained if isinstance(each, Unexplained) or each.tiles or each.uniform]
    if not found:
        raise UnknownNameError(
            f"no tile is called `{value}`",
            help="use a name that the source assigns a tile to, or a number that `show --stage tile` prints",
        )
    return found


def _one_layout(explained: Sequence[Explained], value: str) -> TileExplanation:
    """The tile to draw.

    Raises:
        ArgumentError: there is none, or there are several with different layouts.
        LayoutError: there are no layouts.
    """
    from tilewright.driver.explain import Unexplained

    kernels = [each for each in explained if not isinstance(each, Unexplained)]
    tiles = [(each.kernel, tile) for each in kernels for tile in each.tiles]
    for each in explained:
        if not tiles and isinstance(each, Unexplained):
            raise each.error
    if not tiles:
        raise ArgumentError(f"`{value}` has no layout to draw", help="leave out --draw for the reason")
    if len({tile.layout for _, tile in tiles}) > 1:
        listed = ", ".join(f"{kernel}/{tile.label}" for kernel, tile in tiles)
        message = f"`{value}` is the name of tiles in different layouts: {listed}"
        raise ArgumentError(message, help="draw one of these")
    return tiles[0][1]


def _drawing(tile: TileExplanation, machine_name: str, kind: str, windows: tuple[str | None, str | None]) -> str:
    from tilewright.dtypes import by_name
    from tilewright.layout import draw
    from tilewright.layout.svg import draw_svg
    from tilewright.machines.machine import load

    rows, columns = (_window(text, flag) for text, flag in zip(windows, ("--rows", "--columns"), strict=True))
    ports = _ports(tile.layout, load(machine_name))
    item_bytes = by_name(tile.dtype).itemsize
    if kind == "text":
        return draw(tile.layout, rows=rows, columns=columns, banks=ports, item_bytes=item_bytes)
    called = f", {tile.layout_name}" if tile.layout_name is not None else ""
    title = f"{tile.name or tile.label} = {tile.made_by} on {machine_name}: {tile.dtype}{called}"
    return draw_svg(tile.layout, title=title, rows=rows, columns=columns, ports=ports, item_bytes=item_bytes)


def _ports(layout: Layout, machine: Machine) -> MemoryPorts | None:
    """The ports of the memory that the layout is of; None for registers, and where software sees no banks."""
    from tilewright.layout.access import MemoryPorts

    axes = [axis for axis in layout.axes if axis.partition(".")[0] == "mem"]
    memory = machine.memory_of(axes[0]) if len(axes) == 1 else None
    if memory is None or not memory.banks:
        return None
    return MemoryPorts(memory.banks, memory.bank_bytes, memory.line_bytes, memory.widest_bytes)


def _window(text: str | None, flag: str) -> range | None:
    if text is None:
        return None
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise ArgumentError(
            f"`{flag} {text}` is no window", help="give a number such as 16, or FIRST:END such as 16:32"
        )
    return range(int(match[1] or 0), int(match[2]))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise ArgumentError(f"{str(path)!r} cannot be written: {error.strerror}", help="choose another file") from error
