"""The page of the layout catalogue, made from the constructors' docstrings and one example of each.

`python tests/unit/layout/catalogue_page.py` writes docs/reference/layouts.md.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tilewright.layout import Layout, catalogue, draw
from tilewright.layout.catalogue import Planes

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "layouts.md"

FAMILIES = {
    "nvidia_registers": "NVIDIA registers",
    "nvidia_shared": "NVIDIA shared memory",
    "nvidia_tensor_memory": "NVIDIA tensor memory",
    "amd": "AMD registers",
    "cpu": "CPU",
    "grid": "Grid of cores",
    "mesh": "Mesh of devices",
    "formats": "Formats of several planes",
}

EXAMPLES = """
wgmma_accumulator((64, 16))
wgmma_operand((64, 32), 8)
wgmma_transposed((64, 8))
wgmma_per_row(128)
wgmma_per_column(16)
wgmma_upcast((64, 16), 2)
mma_operand_a((32, 16), 16, warps=(2, 2))
mma_operand_b((16, 16), 16, warps=(2, 2))
mma_accumulator((32, 16), warps=(2, 2))
ldmatrix_rows(4)
ldmatrix_registers(4, transposed=True)
strided_registers((64, 64), 4)
shared_matrix((64, 64), 16)
padded_shared((64, 32), [(32, 8)])
tensor_memory_accumulator((256, 64), packing=2, ctas=2)
tensor_memory_half_lanes((64, 32), packing=2)
tensor_memory_column_halves((128, 32), packing=2, ctas=2)
tensor_memory_scales((256, 4))
tcgen05_registers((128, 64), "16x256b")
tcgen05_transposed((128, 8))
tcgen05_column_halves((64, 32))
tcgen05_per_row(128)
mfma_operand_a((64, 16), 16, waves=(2, 2))
mfma_operand_b((16, 64), 16, waves=(2, 2))
mfma_accumulator((64, 64), 32, waves=(2, 2))
wmma_operand_a((32, 16), 3, waves=(2, 2))
wmma_operand_b((16, 32), 4, waves=(2, 2))
wmma_accumulator((32, 32), 3, waves=(2, 2))
packed_panels_a((100, 64), 6, depth_group=2)
packed_panels_b((64, 100), 16, depth_group=4)
spread_rows((6, 100), 16)
register_block((6, 32), 16)
tile_faces()
tilized((50, 70))
paged_tile((2, 64, 32), 1, 2)
deal_pages(100, 1024, 12)
interleaved((64, 384), 12)
height_sharded((2048, 32), 32, (8, 8), (32, 32))
width_sharded((32, 2048), 32, (8, 8), (32, 32))
block_sharded((256, 256), (96, 96), (3, 3), (32, 32))
nd_sharded((4, 64, 64), (1, 32, 32), 8, (32, 32))
fold_cores(row_major((64,), "core"), (8, 8))
mesh_sharding((64, 128), {"x": 2, "y": 4, "z": 2, "t": 2}, [("x", "y"), ()], {"z": "add"})
block_float((64, 64), 8)
microscaled((128, 128), 8)
nvfp4((128, 128))
scale_rows((128, 128), 32)
scale_blocks((256, 128), 16)
sparse_2_of_4((64, 64), 16)
""".strip().splitlines()


def evaluate(example: str) -> Layout | Planes:
    from tilewright.layout import row_major

    return eval(example, {**vars(catalogue), "row_major": row_major})


def axes_of(value: Layout | Planes) -> set[str]:
    layouts = [value] if isinstance(value, Layout) else [plane.layout for plane in value.planes]
    return {axis for layout in layouts for axis in layout.axes}


def constructors() -> dict[str, Callable[..., Layout | Planes]]:
    named = {name: getattr(catalogue, name) for name in catalogue.__all__}
    return {name: value for name, value in named.items() if inspect.isfunction(value)}


def family_of(name: str) -> str:
    return constructors()[name].__module__.rpartition(".")[2]


def described(name: str) -> tuple[str, str, str]:
    """What a constructor's docstring says it holds, its axes, and the source of its table."""
    text = inspect.getdoc(constructors()[name]) or ""
    head, _, body = text.partition("\n\n")
    found = re.search(r"Ax[ei]s (.+?)\.(?:\s|$)(.*)", _one_line(body.partition("Raises:")[0]))
    if found is None:
        raise ValueError(f"the docstring of {name} names no axes")
    return _one_line(head), found[1], found[2]


def page() -> str:
    lines = [
        "# The catalogue of layouts",
        "",
        "`tilewright.layout.catalogue` has a constructor for each map from elements to places that hardware fixes.",
        "`python tests/unit/layout/catalogue_page.py` writes this page from the docstrings; each map is tested element",
        "by element against the formulas or tables of its source.",
        "",
        "A layout is printed as `(shape) : [digits of dim 0 | digits of dim 1 | ...]`; the digit `8@lane*4` counts to",
        "8 and moves 4 lanes a step.",
    ]
    for module, title in FAMILIES.items():
        names = [example.partition("(")[0] for example in EXAMPLES]
        lines += ["", f"## {title}", "", *_introduction(module)]
        lines += ["", "| constructor | what | axes | source |", "|---|---|---|---|"]
        lines += [_row(name) for name in names if family_of(name) == module]
        lines += ["", "```python", *_examples(module), "```"]
    drawing = draw(catalogue.mma_accumulator((16, 8)), "lane", "reg")
    lines += ["", "## A drawing", "", '`draw(mma_accumulator((16, 8)), "lane", "reg")`:', "", "```", drawing, "```"]
    return "\n".join(lines) + "\n"


def _introduction(module: str) -> list[str]:
    text = inspect.getdoc(import_module(f"tilewright.layout.catalogue.{module}")) or ""
    return text.splitlines()


def _row(name: str) -> str:
    what, axes, source = described(name)
    parameters = ", ".join(inspect.signature(constructors()[name]).parameters)
    return f"| `{name}({parameters})` | {what} | {axes} | {source or 'see above'} |"


def _examples(module: str) -> list[str]:
    lines: list[str] = []
    for example in EXAMPLES:
        if family_of(example.partition("(")[0]) != module:
            continue
        value = evaluate(example)
        if isinstance(value, Layout):
            lines += [example, f"# {value}"]
        else:
            lines += [example, *(f"# {plane.name}, {plane.bits} bits: {plane.layout}" for plane in value.planes)]
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
