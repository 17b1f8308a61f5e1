"""The layout algebra: a `Layout` maps logical indices to named hardware axes. Pure Python, with no IR in it.

    layout = panels((512, 100), dim=1, width=16)         # B packed for a micro-kernel, N padded to 112
    layout.coordinates((3, 17))                          # {'mem': 8241}
    print(draw(layout))

The names load with the module that defines them, on first use. In a tile kernel the package itself is a function:
`tw.layout(x, layout)` pins a tile.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tilewright.layout.composition import compose, inverse
    from tilewright.layout.construct import blocked, column_major, distributed, line_swizzle, panels, row_major, strided
    from tilewright.layout.dims import (
        Affine,
        Dim,
        Size,
        ceil_divide,
        known_multiple,
        lower_bound,
        substitute,
        upper_bound,
    )
    from tilewright.layout.drawing import draw
    from tilewright.layout.iters import NO_AXIS, Digits, Iter, Partial, Replica, XorTerm, group_digits
    from tilewright.layout.layout import Layout, LinearTerm
    from tilewright.layout.operations import (
        canonical,
        compact,
        forget_replicas,
        product,
        slice_box,
        split,
        tile,
        trim,
    )
    from tilewright.layout.queries import alignment, contiguous_run, is_contiguous, is_injective, locate, same_map
    from tilewright.layout.views import Broadcast, Reduce, Reshape, Transpose, broadcast, permute, reduce, reshape

_MODULES = {
    "composition": "compose inverse",
    "construct": "blocked column_major distributed line_swizzle panels row_major strided",
    "dims": "Affine Dim Size ceil_divide known_multiple lower_bound substitute upper_bound",
    "drawing": "draw",
    "iters": "NO_AXIS Digits Iter Partial Replica XorTerm group_digits",
    "layout": "Layout LinearTerm",
    "operations": "canonical compact forget_replicas product slice_box split tile trim",
    "queries": "alignment contiguous_run is_contiguous is_injective locate same_map",
    "views": "Broadcast Reduce Reshape Transpose broadcast permute reduce reshape",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "NO_AXIS",
    "Affine",
    "Broadcast",
    "Digits",
    "Dim",
    "Iter",
    "Layout",
    "LinearTerm",
    "Partial",
    "Reduce",
    "Replica",
    "Reshape",
    "Size",
    "Transpose",
    "XorTerm",
    "alignment",
    "blocked",
    "broadcast",
    "canonical",
    "ceil_divide",
    "column_major",
    "compact",
    "compose",
    "contiguous_run",
    "distributed",
    "draw",
    "forget_replicas",
    "group_digits",
    "inverse",
    "is_contiguous",
    "is_injective",
    "known_multiple",
    "line_swizzle",
    "locate",
    "lower_bound",
    "panels",
    "permute",
    "product",
    "reduce",
    "reshape",
    "row_major",
    "same_map",
    "slice_box",
    "split",
    "strided",
    "substitute",
    "tile",
    "trim",
    "upper_bound",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


class _CallablePackage(ModuleType):
    """The package, which tile kernels call."""

    def __call__(self, x: object, layout: object, /, *, strict: bool = False) -> NoReturn:
        """In a kernel, the tile `x` pinned to a layout, a `Layout` or its text. Data moves here where that is cheapest;
        with `strict`, none moves between what makes the tile, the pin and what uses it."""
        from tilewright.errors import UnsupportedSyntaxError, user_location

        raise UnsupportedSyntaxError(
            "`tw.layout` belongs inside a function decorated with `@tw.kernel`",
            location=user_location(),
            help="arrays have no layout of their own: pin the tiles of a kernel, and call the kernel",
        )


# `tw.layout` has to be both: importing any module of the package binds the name `layout` of `tilewright` to it.
sys.modules[__name__].__class__ = _CallablePackage
