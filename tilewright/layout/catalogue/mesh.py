"""Arrays over a mesh of devices, on the axes `device.<name>` and `mem`.

Source: the semantics of named shardings (GSPMD, arXiv 2105.04663; Shardy's dimension shardings and unreduced axes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tilewright.errors import LayoutError
from tilewright.layout.construct import distributed
from tilewright.layout.iters import Partial, Replica
from tilewright.layout.layout import Layout


def mesh_sharding(
    shape: Sequence[int],
    mesh: Mapping[str, int],
    dims: Sequence[Sequence[str]],
    partial: Mapping[str, str] | None = None,
) -> Layout:
    """An array on a mesh of devices: any shape, any element type; per dim the names of the mesh axes that divide it.

    Several axes of one dim nest, the first outermost. Blocks are row-major on each device, and all of one size, dims
    being padded. Along mesh axes in `partial` (axis name to operation) devices hold terms of the elements; along all
    others that no dim names they hold copies. Axes `device.<name>` for each name of the mesh, and mem.

    Raises:
        LayoutError: a name is not of the mesh or is used twice, or `dims` does not fit the shape.
    """
    terms = partial or {}
    _check_names(shape, mesh, dims, terms)
    splits = [(dim, f"device.{name}", mesh[name]) for dim, names in enumerate(dims) for name in names]
    used = {name for names in dims for name in names} | set(terms)
    copied = [name for name in mesh if name not in used and mesh[name] > 1]
    return replace(
        distributed(shape, splits),
        replica=tuple(Replica(mesh[name], 1, f"device.{name}") for name in copied),
        partial=tuple(Partial(mesh[name], 1, f"device.{name}", op) for name, op in terms.items() if mesh[name] > 1),
    )


def _check_names(
    shape: Sequence[int], mesh: Mapping[str, int], dims: Sequence[Sequence[str]], terms: Mapping[str, str]
) -> None:
    if len(dims) != len(shape) or any(isinstance(names, str) for names in dims):
        raise LayoutError(
            f"{dims!r} has no entry for each of {len(shape)} dims",
            help='give one tuple of mesh axes per dim, such as [("data", "model"), ()]',
        )
    names = [*(name for own in dims for name in own), *terms]
    unknown = [name for name in names if name not in mesh]
    if unknown:
        raise LayoutError(f"the mesh has no axis `{unknown[0]}`", help=f"choose from: {', '.join(mesh) or 'none'}")
    twice = [name for name in mesh if names.count(name) > 1]
    if twice:
        raise LayoutError(
            f"the mesh axis `{twice[0]}` is used twice", help="use each axis for one dim or for partial sums"
        )
