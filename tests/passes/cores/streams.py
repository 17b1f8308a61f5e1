"""Programs of one core in the `scheduled` phase, written as the steps of its threads: pages go from an array to queues
and from queues to another array."""

from __future__ import annotations

from collections.abc import Mapping


def program(
    queues: Mapping[str, tuple[str, int]],
    reader: str,
    writer: str,
    compute: str = "",
    pages: tuple[int, int] = (4, 4),
    dtype: str = "f32",
) -> str:
    """Queues with the format and number of their pages; two arrays, of so many pages below each other."""
    x, y = (f"tensor<{32 * count}x32x{dtype}>" for count in pages)
    made = "\n".join(
        f'%{name} = cores.queue() : !cores.queue<"{format}", {count}>' for name, (format, count) in queues.items()
    )
    thread = f'cores.thread() {{role = "compute"}} do {{\n{compute}\ncores.end()\n}}' if compute else ""
    return f"""
    func.func @main(%x: {x}) -> {y} {{
      %y = array.call(%x) {{callee = "k"}} : {y}
      func.return %y : {y}
    }}
    tile.kernel() {{sym_name = "k", grid = array<i64>, effects = ["in", "out"]}} do {{
    ^bb0(%x: !tile.ref<{x}>, %out: !tile.ref<{y}>):
      cores.program() {{cores = array<i64: 1, 1>, wide = true}} do {{
      ^bb1(%row: index, %column: index):
        {made}
        cores.thread() {{role = "reader", noc = 0 : index}} do {{
          {reader}
          cores.end()
        }}
        cores.thread() {{role = "writer", noc = 1 : index}} do {{
          {writer}
          cores.end()
        }}
        {thread}
        cores.end()
      }}
      tile.yield()
    }}
    """


def step(name: str, queue: str, pages: int = 1) -> str:
    return f"cores.{name}(%{queue}) {{pages = {pages} : index}}\n"


def _moved(name: str, array: str, queue: str, page: int, count: int) -> str:
    extents = f"extents = array<i64: {count}>"
    return f"""cores.{name}(%{array}, %{queue}) {{{extents}, map = affine_map<(d0) -> (d0 + {page}, 0)>,
      at = affine_map<(d0) -> (d0)>}}
    """


def fetched(queue: str, page: int, count: int = 1) -> str:
    """Pages of the array that is read, to a queue."""
    wait = 'cores.barrier() {of = "read"}\n'
    return step("reserve", queue, count) + _moved("fetch", "x", queue, page, count) + wait + step("push", queue, count)


def put(queue: str, page: int, count: int = 1) -> str:
    """Pages of a queue to the array that is written; they stay in the queue."""
    return step("wait", queue, count) + _moved("put", "out", queue, page, count) + 'cores.barrier() {of = "write"}\n'


def written(queue: str, page: int, count: int = 1) -> str:
    return put(queue, page, count) + step("pop", queue, count)


def computed(source: str, target: str, fn: str = "negative", dtype: str = "f32") -> str:
    """A function of a page of one queue, to another one."""
    one = "slot = 0 : index, count = 1 : index"
    return (
        step("wait", source)
        + step("reserve", target)
        + f"""cores.registers() {{step = "acquire"}}
    cores.copy(%{source}) {{{one}, at = affine_map<(d0) -> (d0)>, broadcast = "none"}}
    cores.map() {{{one}, fn = "{fn}", dtype = "{dtype}", arguments = array<i64: 0>, numbers = []}}
    cores.registers() {{step = "commit"}}
    cores.registers() {{step = "wait"}}
    cores.pack(%{target}) {{{one}, at = affine_map<(d0) -> (d0)>}}
    cores.registers() {{step = "release"}}
    """
        + step("push", target)
        + step("pop", source)
    )


def repeated(body: str, trips: int = 2, end: str = "") -> str:
    return f"tile.for() {{trips = {trips} : index{end}}} do {{\n^bb9(%trip: index):\n{body}\ntile.yield()\n}}\n"
