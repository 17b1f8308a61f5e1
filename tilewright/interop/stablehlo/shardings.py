"""Meshes and shardings of the Shardy dialect in MLIR's text."""

from __future__ import annotations

import re
from typing import Any

from tilewright.collectives import MAX_DEVICES
from tilewright.interop.stablehlo.ir import Mesh, Sharding, Symbol
from tilewright.interop.stablehlo.text import Cursor

_SYMBOL = re.compile(r'@(?:([\w.$-]+)|"([^"\n]*)")(?:::@[\w.$-]+)*')
_SIZE = re.compile(r"\d{1,9}")
_PART = re.compile(r":\(\d{1,9}\)\d{1,9}")
_PRIORITY = re.compile(r"p\d{1,9}")


class ShardingReader(Cursor):
    """A cursor that reads meshes and shardings."""

    def symbol(self) -> Symbol:
        """The name of a function or mesh."""
        found = self.take(_SYMBOL, "a name such as `@main`")
        return Symbol(found.group(1) or found.group(2) or "")

    def sharding_attribute(self) -> Any:
        """An attribute of Shardy; None where there is none here that is read."""
        if self.accept("#sdy.sharding<"):
            self.at -= 1
            return self.sharding()
        if self.accept("#sdy.sharding_per_value<"):
            found = self.shardings()
            self.expect(">")
            return found
        if self.accept("#sdy.mesh<"):
            self.at -= 1
            return self.mesh()
        if self.accept("#sdy<manual_axes{"):
            self.at -= 1
            axes = self.axes()
            self.expect(">")
            return axes
        return None

    def mesh(self) -> Mesh:
        """`<["x"=4, "y"=2], device_ids=[...]>`."""
        start = self.skip_blanks()
        self.expect("<")
        self.expect("[")
        axes: list[tuple[str, int]] = []
        while not self.accept("]"):
            if axes:
                self.expect(",")
            name = self.string()
            self.expect("=")
            axes.append((name, int(self.take(_SIZE, "a size").group())))
        order = self._order() if self.accept(",") else None
        self.expect(">")
        mesh = Mesh(tuple(axes), order)
        if not 1 <= mesh.size <= MAX_DEVICES or len(set(mesh.names)) != len(axes):
            raise self.error(f"a mesh has 1 to {MAX_DEVICES} devices, on axes of different names", start)
        # A mesh without axes is one device, whichever it is.
        if order is not None and axes and sorted(order) != list(range(mesh.size)):
            raise self.error("the devices of the mesh are not numbered 0 and up", start)
        return mesh

    def _order(self) -> tuple[int, ...]:
        self.expect("device_ids")
        self.expect("=")
        self.expect("[")
        order: list[int] = []
        while not self.accept("]"):
            if order:
                self.expect(",")
            order.append(int(self.take(_SIZE, "a device index").group()))
        return tuple(order)

    def shardings(self) -> tuple[Sharding, ...]:
        """`[<@mesh, [...]>, ...]`."""
        self.expect("[")
        found: list[Sharding] = []
        while not self.accept("]"):
            if found:
                self.expect(",")
            found.append(self.sharding())
        return tuple(found)

    def sharding(self) -> Sharding:
        """`<@mesh, [{"x"}, {"y", ?}], unreduced={"z"}>`."""
        self.expect("<")
        mesh = self.mesh() if self.accept("mesh") else self.symbol()
        self.expect(",")
        self.expect("[")
        dims: list[tuple[str, ...]] = []
        opened: list[int] = []
        marks: list[bool] = []
        while not self.accept("]"):
            if dims:
                self.expect(",")
            axes, is_open, is_exact = self._axes()
            if is_open:
                opened.append(len(dims))
            self.match(_PRIORITY)
            dims.append(axes)
            marks.append(is_exact)
        unreduced: tuple[str, ...] = ()
        while self.accept(","):
            if self.accept("replicated"):
                self.expect("=")
                marks.append(self._axes()[2])
            else:
                self.expect("unreduced")
                self.expect("=")
                unreduced, _, is_exact = self._axes()
                marks.append(is_exact)
        self.expect(">")
        return Sharding(mesh, tuple(dims), tuple(opened), unreduced, all(marks))

    def axes(self) -> tuple[str, ...]:
        """`{"x", "y"}`."""
        return self._axes()[0]

    def _axes(self) -> tuple[tuple[str, ...], bool, bool]:
        """Names of axes, whether more may be added, and whether none of them is a part of an axis."""
        self.expect("{")
        axes: list[str] = []
        is_open, is_exact = False, True
        while not self.accept("}"):
            if axes or is_open:
                self.expect(",")
            if self.accept("?"):
                is_open = True
                continue
            axes.append(self.string())
            if self.match(_PART):
                axes.pop()
                is_exact = False
                if not self.sees("}"):
                    self.expect(",")
        return tuple(axes), is_open, is_exact
