"""Matmuls of one block in the `tile` phase, with something else in some places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """A matmul of tiles in a loop over the depth, with something else in some places."""

    rows: int = 128
    columns: int = 32
    depth: int = 16
    trips: int = 3
    dtype: str = "f16"
    sum: str = "f32"
    atom: str = ""
    warps: str = ""
    start: str = "0.0 : f64"
    end: str = ""
    fill: str = "0.0 : f64"
    width: int = 0  # of the rows of the left operand
    before: str = ""
    between: str = ""
    left: str = "%a"
    after: str = ""
    accumulator: str = "%s"
    result: str = "%p"
    step: str = "%t"
    is_transposed: bool = False  # the right operand, in its array

    @property
    def text(self) -> str:
        total = self.depth * self.trips
        x = f"tensor<{self.rows}x{self.width or total}x{self.dtype}>"
        stored = f"{self.columns}x{total}" if self.is_transposed else f"{total}x{self.columns}"
        y, z = f"tensor<{stored}x{self.dtype}>", f"tensor<{self.rows}x{self.columns}x{self.sum}>"
        depth, columns = f"d0 + s0 * {self.depth}", "d1"
        place = f"{columns}, {depth}" if self.is_transposed else f"{depth}, {columns}"
        left, right = f"{self.rows}x{self.depth}x{self.dtype}", f"{self.depth}x{self.columns}x{self.dtype}"
        return f"""
func.func @main(%x: {x}, %y: {y}) -> {z} {{
  %z = array.call(%x, %y) {{callee = "product"}} : {z}
  func.return %z : {z}
}}
tile.kernel() {{sym_name = "product", grid = array<i64: 1>, effects = ["in", "in", "out"]{self.warps}}} do {{
^bb0(%x: !tile.ref<{x}>, %y: !tile.ref<{y}>, %out: !tile.ref<{z}>, %i: index):
  %zero = tile.full() {{value = {self.start}}} : {z}
  {self.before}
  %sum = tile.for({"%i, " if self.end else ""}%zero) {{trips = {self.trips} : index{self.end}}} do {{
  ^bb1(%t: index, %s: {z}):
    %a = tile.load(%x, {self.step}) {{map = affine_map<(d0, d1)[s0] -> (d0, d1 + s0 * {self.depth})>,
      fill = {self.fill}}} : tensor<{left}>
    %b = tile.load(%y, {self.step}) {{map = affine_map<(d0, d1)[s0] -> ({place})>,
      fill = {self.fill}}} : tensor<{right}>
    {self.between}
    %p = tile.dot({self.left}, %b, {self.accumulator}) {{{self.atom}}} : {z}
    {self.after}
    tile.yield({self.result})
  }} : {z}
  tile.store(%sum, %out) {{map = affine_map<(d0, d1) -> (d0, d1)>}}
  tile.yield()
}}
"""
