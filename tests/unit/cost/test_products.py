"""Predicted times of products, and the schedules chosen by them: against another search, and as time must behave."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from itertools import product as combinations

import pytest
from msgspec.structs import replace

from tilewright import dtypes
from tilewright.cost.tiles import MatmulTile, dividing_split
from tilewright.cost.vectors.products import Product, Right, best_candidate, candidates, schedule_seconds, tile_seconds
from tilewright.cost.vectors.register_blocks import register_blocks
from tilewright.cost.vectors.split_products import split_tile
from tilewright.machines.machine import Memory, load

MACHINES = ("x86-64-v3", "x86-64-v4")
CHOICES = (Right.IN_PLACE, Right.KEPT, Right.TOGETHER)
THREADS = (1, 2, 3, 8, 64)


def of_shape(rows: int, columns: int, depth: int, **more: object) -> Product:
    return replace(
        Product(rows, columns, depth, dtypes.f32, pitch_bytes=4 * columns, choices=CHOICES),
        **more,  # pyright: ignore[reportArgumentType]  fields by name
    )


def random_products(count: int) -> Iterator[Product]:
    generator = random.Random(1)
    for _ in range(count):
        rows, columns, depth = (int(2 ** generator.uniform(0, 11.5)) for _ in range(3))
        dtype = generator.choice([dtypes.f32, dtypes.f64])
        yield of_shape(
            rows,
            columns,
            depth,
            dtype=dtype,
            batches=generator.choice([1, 1, 5]),
            pitch_bytes=dtype.itemsize * columns * generator.choice([1, 1, 3]),
            choices=generator.choice([CHOICES, CHOICES, (Right.READY,), (Right.TOGETHER,), (Right.ALONE,)]),
            copies_left=generator.random() < 0.3,
            buffered=generator.random() < 0.3,
        )


PRODUCTS = tuple(random_products(60))


# ---- the choice -----------------------------------------------------------------------------------------------------


def even_blocks(size: int, targets: list[int], multiple: int) -> set[int]:
    """Equal blocks, found by trying numbers of them: as few as are none above the target, in whole multiples."""
    found: set[int] = set()
    for target in targets:
        count = next(n for n in range(1, size + 1) if n * target >= size)
        block = next(b for b in range(1, size + 1) if b * count >= size)
        found.add(next(m for m in range(multiple, 2 * size + 2 * multiple, multiple) if m >= block))
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_no_schedule_of_a_search_of_its_own_is_quicker(name: str) -> None:
    machine = load(name)
    for product in PRODUCTS:
        times: list[float] = []
        depth = dividing_split(product.depth, 2048)
        for block in register_blocks(product.dtype, machine):
            heights = even_blocks(product.rows, [32 * 2**n for n in range(7)], 1)
            targets = [max(block.columns, 16 * 2**n) for n in range(7)]
            widths = even_blocks(product.columns, targets, block.columns)
            for rows, columns, right in combinations(heights, widths, product.choices):
                tile = MatmulTile(rows, columns, depth)
                times.append(schedule_seconds(product, tile, block, right, machine, 2))
        assert best_candidate(product, machine, 2).seconds == pytest.approx(min(times), rel=1e-12)


@pytest.mark.parametrize("name", MACHINES)
def test_tiles_cover_the_product_in_whole_register_blocks(name: str) -> None:
    machine = load(name)
    for product in PRODUCTS:
        found = list(candidates(product, machine, 2))
        assert found
        for schedule in found:
            tile, block = schedule.tile, schedule.block
            assert 1 <= tile.rows <= product.rows
            assert tile.columns % block.columns == 0
            assert block in register_blocks(product.dtype, machine)
            assert schedule.right in product.choices
            for size, extent in (
                (product.rows, tile.rows),
                (product.columns, tile.columns),
                (product.depth, tile.depth),
            ):
                blocks = next(n for n in range(1, size + 1) if n * extent >= size)
                assert (blocks - 1) * extent < size, "no block is beyond the end"


@pytest.mark.parametrize(
    ("name", "rows", "columns", "vectors"),
    [
        ("x86-64-v4", 64, 16, 1),  # two vectors would be half padding
        ("x86-64-v4", 64, 1, 1),
        ("x86-64-v4", 64, 17, 2),
        ("x86-64-v4", 64, 48, 3),
        ("x86-64-v3", 64, 8, 1),
        ("x86-64-v3", 64, 16, 2),
        ("x86-64-v3", 4, 20, 3),  # one panel of 24 columns instead of two of 16
        ("x86-64-v3", 1024, 1024, 2),
        ("x86-64-v3", 1, 1000, 4),  # a row alone has too few accumulators: the widest hides most of the latency
    ],
)
def test_register_blocks_of_known_tiles(name: str, rows: int, columns: int, vectors: int) -> None:
    machine = load(name)
    blocks = register_blocks(dtypes.f32, machine)
    assert min(blocks, key=lambda b: tile_seconds(rows, columns, 64, b, dtypes.f32, machine)).vectors == vectors


@pytest.mark.parametrize("name", MACHINES)
def test_depth_blocks_do_not_depend_on_threads(name: str) -> None:
    """Or sums would."""
    machine = load(name)
    for product in PRODUCTS:
        assert len({best_candidate(product, machine, threads).tile.depth for threads in THREADS}) == 1


@pytest.mark.parametrize("depth", [1, 7, 2048, 2049, 2063, 4096, 5000, 6144, 10007])
def test_depth_blocks_divide_the_depth_where_twice_as_many_as_it_takes_do(depth: int) -> None:
    block = dividing_split(depth, 2048)
    fewest = next(n for n in range(1, depth + 1) if n * 2048 >= depth)
    counts = [n for n in range(fewest, 2 * fewest + 1) if depth % n == 0]
    assert block <= 2048
    assert -(-depth // block) == (counts[0] if counts else fewest)
    assert bool(counts) == (depth % block == 0)


# ---- the time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("dim", ["rows", "columns", "depth", "batches"])
def test_twice_the_work_is_predicted_to_take_no_less_time(name: str, dim: str) -> None:
    machine = load(name)
    for product in PRODUCTS:
        for threads in (1, 2, 8):
            once = best_candidate(product, machine, threads).seconds
            twice = best_candidate(replace(product, **{dim: 2 * getattr(product, dim)}), machine, threads).seconds
            assert twice >= once * (1 - 1e-9), (product, threads)


@pytest.mark.parametrize("name", MACHINES)
def test_more_threads_are_predicted_to_take_no_more_time(name: str) -> None:
    """For a schedule that has nothing that threads wait for, and for the best of several."""
    machine = load(name)
    for product in PRODUCTS:
        if product.choices == (Right.TOGETHER,):
            continue
        times = [best_candidate(product, machine, threads).seconds for threads in THREADS]
        assert times == sorted(times, reverse=True), product


@pytest.mark.parametrize("name", MACHINES)
def test_a_product_takes_at_least_its_arithmetic(name: str) -> None:
    machine = load(name)
    for product in PRODUCTS:
        for threads in THREADS:
            flops = 2.0 * product.batches * product.rows * product.columns * product.depth
            least = flops / machine.peak_flops(product.dtype) / threads
            assert best_candidate(product, machine, threads).seconds >= least


@pytest.mark.parametrize("name", MACHINES)
def test_rows_that_collide_in_a_cache_are_not_read_in_place_by_many_rows(name: str) -> None:
    """At a pitch of a large power of two, all rows of a right operand fall on few sets of a cache."""
    machine = load(name)
    for columns in (64, 256, 1024):
        colliding = of_shape(1024, columns, 1024, pitch_bytes=1 << 16)
        assert best_candidate(colliding, machine, 2).right != Right.IN_PLACE
        apart = replace(colliding, pitch_bytes=(1 << 16) + 64)
        times = [best_candidate(replace(p, choices=(Right.IN_PLACE,)), machine, 2).seconds for p in (colliding, apart)]
        assert times[0] > times[1]


# ---- what a cache holds ---------------------------------------------------------------------------------------------


def resident_lines(memory: Memory, pitch_bytes: int) -> int:
    """Lines that are in a cache after it was read at a pitch for long: sets that replace what was read longest ago."""
    sets = memory.bytes // memory.line_bytes // memory.ways
    held: dict[int, OrderedDict[int, None]] = {}
    for row in range(8 * memory.bytes // memory.line_bytes):
        line = row * pitch_bytes // memory.line_bytes
        lines = held.setdefault(line % sets, OrderedDict())
        lines[line] = None
        lines.move_to_end(line)
        if len(lines) > memory.ways:
            lines.popitem(last=False)
    return sum(len(lines) for lines in held.values())


@pytest.mark.parametrize(
    "pitch_bytes", [16, 64, 100, 128, 192, 2048, 4000, 4032, 4096, 4160, 6144, 12288, 65536, 65600]
)
@pytest.mark.parametrize(("kib", "ways"), [(4, 2), (32, 8), (48, 12), (64, 16)])
def test_lines_at_a_pitch_are_those_of_a_cache_that_is_read_so(kib: int, ways: int, pitch_bytes: int) -> None:
    memory = Memory("cache", kib * 1024, 64, 1e9, 1e-9, ways=ways)
    assert memory.lines_at(pitch_bytes) == resident_lines(memory, pitch_bytes)


# ---- in parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [768, 1024, 4096])
def test_large_products_are_in_parts_where_the_machine_is_sure_and_small_or_thin_ones_are_not(
    size: int,
) -> None:
    machine = load("x86-64-amx")
    as_it_is = machine.split_atom(dtypes.f32, dtypes.f32, dtypes.f32)
    assert as_it_is is not None
    atom = replace(as_it_is, sure=0.76)
    for threads in THREADS:
        assert split_tile(of_shape(size, size, size), as_it_is, machine, threads) is None
        tile = split_tile(of_shape(size, size, size), atom, machine, threads)
        assert tile is not None
        assert tile.depth % atom.depth == 0
        assert tile.rows <= size
        for thin in ((1, size, size), (8, size, size), (size, size, 4), (32, 32, 32), (512, 512, 512)):
            assert split_tile(of_shape(*thin), atom, machine, threads) is None
    assert load("x86-64-v4").split_atom(dtypes.f32, dtypes.f32, dtypes.f32) is None


@pytest.mark.parametrize("product", PRODUCTS, ids=repr)
def test_whether_in_parts_and_how_deep_does_not_depend_on_threads(product: Product) -> None:
    machine = load("x86-64-amx")
    atom = machine.split_atom(dtypes.f32, dtypes.f32, dtypes.f32)
    assert atom is not None
    atom = replace(atom, sure=0.76)
    tiles = [split_tile(product, atom, machine, threads) for threads in THREADS]
    assert len({None if tile is None else tile.depth for tile in tiles}) == 1
