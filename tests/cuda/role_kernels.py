"""Scheduled products as text, for the executor of schedules: asynchronous products that a role, or copies of the warps
themselves, feed in stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tests.passes.pass_support import parse
from tilewright.layout.catalogue import shared_matrix
from tilewright.semantics.warps.block_memory import Tensor


@dataclass(frozen=True)
class RoleProduct:
    """f16, `m` x `k` times `k` x `n`, by tiles of the same letters in capitals; `groups` warpgroups multiply."""

    m: int = 150
    n: int = 56
    k: int = 210
    M: int = 128
    N: int = 32
    K: int = 32
    groups: int = 2
    stages: int = 3

    @property
    def trips(self) -> int:
        return -(-self.k // self.K)

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.m // self.M), -(-self.n // self.N)

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Two operands of whole numbers, which products add exactly."""
        rng = np.random.default_rng(self.m)
        shapes = (self.m, self.k), (self.k, self.n)
        left, right = (rng.integers(-4, 5, shape).astype(np.float16) for shape in shapes)
        return left, right

    def exact(self) -> Tensor:
        left, right = self.arrays()
        return (left.astype(np.float64) @ right.astype(np.float64)).astype(np.float32)

    def copied_by_a_role(self) -> ModuleOp:
        """A warp of its own has the machine copy to a stage when it is empty."""
        return parse(self._kernel(f"{self._barriers(self.groups)}{self._role_that_copies()}{self._multiplied()}"))

    def multiplied_twice(self) -> ModuleOp:
        """The same, and another role multiplies as well, and stores to `%more`."""
        stored = f"""tile.store(%sum, %more, %i, %j) {{
            map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * {self.M}, d1 + s1 * {self.N})>}}"""
        other = f"""
    scheduled.role() {{role = "others", warps = {4 * self.groups} : index}} do {{{self._multiplied()}
      {stored}
      scheduled.end()
    }}"""
        roles = f"{self._role_that_copies()}{other}"
        return parse(self._kernel(f"{self._barriers(2 * self.groups)}{roles}{self._multiplied()}", with_more=True))

    def copied_by_itself(self) -> ModuleOp:
        """The warps that multiply copy ahead, and fence what they copied."""
        ahead = self.stages - 1
        filled = [self._copies(trip) if trip < self.trips else "" for trip in range(ahead)]
        first = "".join(f"{copies}\n    scheduled.commit()" for copies in filled)
        return parse(
            self._kernel(f"""
    {self._rings()}{first}
    %zero = tile.full() {{value = 0.0 : f64}} : {self._sum()}
    %sum = tile.for(%zero) {{trips = {self.trips} : index}} do {{
    ^bb3(%t: index, %s: {self._sum()}):
      scheduled.wait() {{pending = {max(0, ahead - 1)} : index}}
      scheduled.fence()
      scheduled.barrier() {{scope = "block"}}
      {self._copies(None)}
      scheduled.commit()
      %a = scheduled.stage(%as, %t) {{map = {self._stage()}}} : {self._left()}
      %b = scheduled.stage(%bs, %t) {{map = {self._stage()}}} : {self._right()}
      %p = scheduled.mma(%a, %b, %s) {{atom = "wgmma", asynchronous = true}} : {self._sum()}
      %w = scheduled.mma_wait(%p) {{pending = 0 : index}} : {self._sum()}
      tile.yield(%w)
    }} : {self._sum()}
""")
        )

    # ---- pieces of the text -----------------------------------------------------------------------------------------

    def _barriers(self, empties: int) -> str:
        """Rings and barriers for each stage; `empties` arrivals say that one is empty."""
        return f"""
    {self._rings()}
    %full = scheduled.mbarrier() {{count = {self.stages} : index, arrivals = 1 : index}}
        : !tile.ref<tensor<{self.stages}xi64>, "block">
    %empty = scheduled.mbarrier() {{count = {self.stages} : index, arrivals = {empties} : index}}
        : !tile.ref<tensor<{self.stages}xi64>, "block">
    scheduled.barrier() {{scope = "every role"}}"""

    def _role_that_copies(self) -> str:
        return f"""
    scheduled.role() {{role = "copies", warps = 1 : index}} do {{
      tile.for() {{trips = {self.trips} : index}} do {{
      ^bb2(%t: index):
        scheduled.await(%empty, %t) {{number = {self._stage()},
            phase = {self._number(f"s0 floordiv {self.stages} - 1")}}}
        scheduled.expect(%full, %t) {{number = {self._stage()}, bytes = {2 * self.K * (self.M + self.N)} : index}}
        %c = scheduled.stage(%as, %t) {{map = {self._stage()}}} : {self._left()}
        scheduled.tensor_copy(%x, %c, %full, %t, %i, %j) {{
            map = affine_map<(d0, d1)[s0, s1, s2] -> (d0 + s1 * {self.M}, d1 + s0 * {self.K})>,
            number = affine_map<()[s0, s1, s2] -> (s0 mod {self.stages})>}}
        %d = scheduled.stage(%bs, %t) {{map = {self._stage()}}} : {self._right()}
        scheduled.tensor_copy(%y, %d, %full, %t, %i, %j) {{
            map = affine_map<(d0, d1)[s0, s1, s2] -> (d0 + s0 * {self.K}, d1 + s2 * {self.N})>,
            number = affine_map<()[s0, s1, s2] -> (s0 mod {self.stages})>}}
        tile.yield()
      }}
      scheduled.end()
    }}"""

    def _multiplied(self) -> str:
        """The loop of warps that multiply what is in full stages, to `%sum`."""
        return f"""
    %zero = tile.full() {{value = 0.0 : f64}} : {self._sum()}
    %going = tile.for(%zero) {{trips = {self.trips} : index}} do {{
    ^bb3(%t: index, %s: {self._sum()}):
      scheduled.await(%full, %t) {{number = {self._stage()}, phase = {self._number(f"s0 floordiv {self.stages}")}}}
      %a = scheduled.stage(%as, %t) {{map = {self._stage()}}} : {self._left()}
      %b = scheduled.stage(%bs, %t) {{map = {self._stage()}}} : {self._right()}
      %p = scheduled.mma(%a, %b, %s) {{atom = "wgmma", asynchronous = true}} : {self._sum()}
      %w = scheduled.mma_wait(%p) {{pending = 1 : index}} : {self._sum()}
      scheduled.arrive(%empty, %t) {{number = {self._number(f"(s0 + {self.stages - 1}) mod {self.stages}")},
          trip = {self._number("s0 - 1")}}}
      tile.yield(%w)
    }} : {self._sum()}
    %sum = scheduled.mma_wait(%going) {{pending = 0 : index}} : {self._sum()}"""

    def _kernel(self, body: str, with_more: bool = False) -> str:
        """The result goes through a buffer, from the lanes that hold the sum to lanes that store rows."""
        warps = 4 * self.groups
        in_memory = f"({self.M}, {self.N}) : [{self.M}@mem.shared*{self.N} | {self.N}@mem.shared]"
        in_rows = f"({self.M}, {self.N}) : [{self.M // warps}@reg {warps}@warp | {self.N}@lane]"
        held = f'!tile.ref<tensor<{self.M}x{self.N}xf32>, "block", "{in_memory}">'
        rows = f'tensor<{self.M}x{self.N}xf32, "{in_rows}">'
        same = "affine_map<(d0, d1) -> (d0, d1)>"
        result = f"!tile.ref<tensor<{self.m}x{self.n}xf32>>"
        more, effect = (f", %more: {result}", ', "out"') if with_more else ("", "")
        return f"""
tile.kernel() {{sym_name = "product", grid = array<i64>, effects = ["in", "in", "out"{effect}]}} do {{
^bb0(%x: !tile.ref<tensor<{self.m}x{self.k}xf16>>, %y: !tile.ref<tensor<{self.k}x{self.n}xf16>>,
    %out: {result}{more}):
  scheduled.parallel() {{extents = array<i64: {self.grid[0]}, {self.grid[1]}>, grain = 1 : index,
      warps = {warps} : index}} do {{
  ^bb1(%i: index, %j: index):{body}
    %held = scheduled.alloc() : {held}
    tile.store(%sum, %held) {{map = {same}}}
    scheduled.barrier() {{scope = "block"}}
    %rows = tile.load(%held) {{map = {same}}} : {rows}
    tile.store(%rows, %out, %i, %j) {{map = affine_map<(d0, d1)[s0, s1] -> (d0 + s0 * {self.M}, d1 + s1 * {self.N})>}}
    scheduled.end()
  }}
  tile.yield()
}}
"""

    def _rings(self) -> str:
        return f"""%as = scheduled.alloc() {{stages = {self.stages} : index}} : {self._left()}
    %bs = scheduled.alloc() {{stages = {self.stages} : index}} : {self._right()}"""

    def _copies(self, first: int | None) -> str:
        """Copies by all threads to a stage: of one of the first trips, or in a trip of that which is copied ahead."""
        ahead = self.stages - 1
        trip = str(first) if first is not None else f"s0 + {ahead}"
        name = "ahead" if first is None else f"first{first}_"
        counter = "" if first is not None else ", %t"
        # Symbols are the trip where there is one, and the indices of the block.
        symbols, row, column = ("s0, s1", "s0", "s1") if first is not None else ("s0, s1, s2", "s1", "s2")
        stage = f"affine_map<()[{'s0' if counter else ''}] -> (({trip}) mod {self.stages})>"
        guard = (
            "" if counter == "" else f", trip = affine_map<()[s0, s1, s2] -> ({trip})>, trips = {self.trips} : index"
        )
        operands = [
            ("a", "%x", self._left(), f"d0 + {row} * {self.M}, d1 + ({trip}) * {self.K}", (self.M, self.K)),
            ("b", "%y", self._right(), f"d0 + ({trip}) * {self.K}, d1 + {column} * {self.N}", (self.K, self.N)),
        ]
        return "".join(
            f"""
      %{name}{ring} = scheduled.stage(%{ring}s{counter}) {{map = {stage}}} : {type}
      scheduled.copy({array}, %{name}{ring}{counter}, %i, %j) {{
          map = affine_map<(d0, d1)[{symbols}] -> ({window})>, layout = "{self._dealt(shape)}"{guard}}}"""
            for ring, array, type, window, shape in operands
        )

    def _dealt(self, shape: tuple[int, int]) -> str:
        """Rows to warps and lanes."""
        warps, (rows, columns) = 4 * self.groups, shape
        return f"({rows}, {columns}) : [{rows // warps}@reg*8 {warps}@warp | {columns // 8}@lane 8@reg]"

    def _left(self) -> str:
        layout = shared_matrix((self.M, self.K), 16, 64)
        return f'!tile.ref<tensor<{self.M}x{self.K}xf16>, "block", "{_shared(layout)}">'

    def _right(self) -> str:
        layout = shared_matrix((self.K, self.N), 16, 64)
        return f'!tile.ref<tensor<{self.K}x{self.N}xf16>, "block", "{_shared(layout)}">'

    def _sum(self) -> str:
        layout = f"[{self.groups}@warp*4 4@warp 2@reg*2 8@lane*4 | {self.N // 8}@reg*4 4@lane 2@reg]"
        return f'tensor<{self.M}x{self.N}xf32, "({self.M}, {self.N}) : {layout}">'

    def _stage(self, trip: str = "s0") -> str:
        return self._number(f"({trip}) mod {self.stages}")

    @staticmethod
    def _number(expression: str) -> str:
        return f"affine_map<()[s0] -> ({expression})>"


def _shared(layout: object) -> str:
    return str(layout).replace("@mem", "@mem.shared").replace("[mem{", "[mem.shared{")
