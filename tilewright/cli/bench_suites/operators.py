"""Other operators of models than matmuls, attention and norms: data movement, convolutions, pooling, `pow`."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

import tilewright as tw
from tilewright.cli.bench_suites.case import (
    Array,
    BinaryPeers,
    Case,
    LibraryArray,
    TernaryPeers,
    UnaryPeers,
    error_bound,
    normal,
)
from tilewright.cli.bench_suites.ops import moving, sizes

_LIBRARIES: tuple[str, ...] = ("numpy", "torch", "jax")


def cases(quick: bool) -> tuple[Case, ...]:
    side, image, joined = (6, 8, 4) if quick else (1024, 224, 32)
    channels, few, positions = (4, 4, 10) if quick else (512, 32, 112)
    return (
        _joining(joined, (64, side), 0),
        _joining(joined, (64, side), 1),
        _part(4 * side, 3 * side),
        _rolling(2 * side, side),
        _reversal(2 * side, side),
        _columns(side, side // 2),
        _images(8, image),
        _product_of_three(*((3, 4, 5, 2, 6) if quick else (64, 96, 48, 80, 72))),
        _convolution(f"of {channels} channels", 1, channels, 7 if not quick else 5),
        _convolution(f"of {channels} channels", 8 if not quick else 2, channels, 7 if not quick else 5),
        _convolution("depthwise", 1, few, positions, groups=few),
        _convolution("depthwise", 1, few, positions, groups=few, stride=2),
        _convolution("in 32 groups" if not quick else "in 2 groups", 1, 8 * few, positions // 4, groups=few // 2),
        _pooling(2 * few, positions),
        _powers(1024 * side),
        _quotients(1024 * side),
    )


def _joining(count: int, shape: tuple[int, int], axis: int) -> Case:
    """Many arrays joined along an axis."""

    @tw.jit
    def join(*arrays: tw.Array) -> tw.Array:
        return tw.concat(arrays, axis=axis)

    def of_numpy(numpy: ModuleType, *arrays: LibraryArray) -> LibraryArray:
        return numpy.concatenate(arrays, axis)

    def of_torch(torch: ModuleType, *arrays: LibraryArray) -> LibraryArray:
        return torch.cat(arrays, axis)

    def of_jax(jax: ModuleType, *arrays: LibraryArray) -> LibraryArray:
        return jax.numpy.concatenate(arrays, axis)

    peers = {"numpy": of_numpy, "torch": of_torch, "jax": of_jax}
    return moving(f"concat {count} of {sizes(shape)} along {axis}", (shape,) * count, join, peers)


def _part(rows: int, columns: int) -> Case:
    """Arithmetic on every second row and third column."""

    @tw.jit
    def part(x: tw.Array) -> tw.Array:
        return x[::2, ::3] + 1

    def function(library: ModuleType, x: LibraryArray) -> LibraryArray:
        return x[::2, ::3] + 1

    peers = dict.fromkeys(_LIBRARIES, function)
    return moving(f"x[::2, ::3] + 1, {rows}x{columns}", ((rows, columns),), part, peers, tolerance=error_bound(1))


def _rolling(rows: int, columns: int) -> Case:
    @tw.jit
    def roll(x: tw.Array) -> tw.Array:
        return tw.roll(x, (3, 5), axis=(0, 1))

    peers: UnaryPeers = {
        "numpy": lambda numpy, x: numpy.roll(x, (3, 5), (0, 1)),
        "torch": lambda torch, x: torch.roll(x, (3, 5), (0, 1)),
        "jax": lambda jax, x: jax.numpy.roll(x, (3, 5), (0, 1)),
    }
    return moving(f"roll {rows}x{columns} along both dims", ((rows, columns),), roll, peers)


def _reversal(rows: int, columns: int) -> Case:
    @tw.jit
    def reverse(x: tw.Array) -> tw.Array:
        return tw.flip(x, axis=1)

    peers: UnaryPeers = {
        # NumPy's is a view until it is written.
        "numpy": lambda numpy, x: numpy.ascontiguousarray(x[:, ::-1]),
        "torch": lambda torch, x: torch.flip(x, (1,)),
        "jax": lambda jax, x: x[:, ::-1],
    }
    return moving(f"flip {rows}x{columns} along rows", ((rows, columns),), reverse, peers)


def _columns(side: int, count: int) -> Case:
    """A gather along the last dim."""

    @tw.jit
    def columns(x: tw.Array, at: tw.Array) -> tw.Array:
        return tw.take(x, at, axis=1)

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return (*normal((side, side))(generator), generator.permutation(side)[:count])

    peers: BinaryPeers = {
        "numpy": lambda numpy, x, at: x.take(at, 1),
        "torch": lambda torch, x, at: torch.index_select(x, 1, at),
        "jax": lambda jax, x, at: x[:, at],
    }
    return moving(f"{count} columns of {side}x{side}", ((side, count),), columns, peers, make_inputs=inputs)


def _images(count: int, side: int) -> Case:
    """Images of bytes, channels last, as normalised f32 with channels first."""
    shape, size = (count, side, side, 3), 3 * count * side * side

    @tw.jit
    def normalise(x: tw.Array) -> tw.Array:
        return (tw.permute_dims(x, (0, 3, 1, 2)).astype(tw.f32) - 127.5) * 0.0078125

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return (generator.integers(0, 256, shape, np.uint8),)

    def of_torch(torch: ModuleType, x: LibraryArray) -> LibraryArray:
        return ((x.permute(0, 3, 1, 2).to(torch.float32) - 127.5) * 0.0078125).contiguous()

    def of_numpy(numpy: ModuleType, x: LibraryArray) -> LibraryArray:
        return numpy.ascontiguousarray((x.transpose(0, 3, 1, 2).astype(numpy.float32) - 127.5) * 0.0078125)

    def of_jax(jax: ModuleType, x: LibraryArray) -> LibraryArray:
        return (x.transpose(0, 3, 1, 2).astype("float32") - 127.5) * 0.0078125

    return moving(
        f"u8 images {sizes(shape)}, channels first",
        (shape,),
        normalise,
        {"numpy": of_numpy, "torch": of_torch, "jax": of_jax},
        bytes=5.0 * size,
        flops=2.0 * size,
        tolerance=error_bound(2),
        make_inputs=inputs,
    )


def _product_of_three(a: int, b: int, c: int, d: int, e: int) -> Case:
    """A contraction whose order matters: of the last two operands first, over `e`, it takes the fewest operations."""
    text, shapes = "abc,cde,ea->bd", ((a, b, c), (c, d, e), (e, a))

    @tw.jit
    def product(x: tw.Array, y: tw.Array, z: tw.Array) -> tw.Array:
        return tw.einsum(text, x, y, z)

    peers: TernaryPeers = {
        "numpy": lambda numpy, x, y, z: numpy.einsum(text, x, y, z, optimize=True),
        "torch": lambda torch, x, y, z: torch.einsum(text, x, y, z),
        "jax": lambda jax, x, y, z: jax.numpy.einsum(text, x, y, z),
    }
    return Case(
        name=f"einsum {text} {', '.join(map(sizes, shapes))}",
        make_inputs=normal(*shapes),
        ours=product,
        peers=peers,
        flops=2.0 * a * c * d * (e + b),
        bytes=4.0 * (sum(map(math.prod, shapes)) + b * d),
        tolerance=error_bound(2, a * c * e),
    )


def _convolution(kind: str, batch: int, channels: int, side: int, *, groups: int = 1, stride: int = 1) -> Case:
    """Windows of 3 x 3, as many channels as there were, zeros around."""
    shapes = ((batch, channels, side, side), (channels, channels // groups, 3, 3))

    @tw.jit
    def convolve(x: tw.Array, w: tw.Array) -> tw.Array:
        return tw.nn.conv(x, w, stride=stride, padding=1, groups=groups)

    def of_torch(torch: ModuleType, x: LibraryArray, w: LibraryArray) -> LibraryArray:
        return torch.nn.functional.conv2d(x, w, stride=stride, padding=1, groups=groups)

    def of_jax(jax: ModuleType, x: LibraryArray, w: LibraryArray) -> LibraryArray:
        return jax.lax.conv_general_dilated(x, w, (stride, stride), ((1, 1), (1, 1)), feature_group_count=groups)

    def reference(numpy: ModuleType, x: Array, w: Array) -> Array:
        padded = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = numpy.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::stride, ::stride]
        windows = windows.reshape(batch, groups, channels // groups, *windows.shape[2:])
        weights = w.reshape(groups, channels // groups, *w.shape[1:])
        found = numpy.einsum("bgchwij,gkcij->bgkhw", windows, weights, optimize=True)
        return found.reshape(batch, channels, *found.shape[3:])

    results = batch * channels * (-(-side // stride)) ** 2
    step = f", step {stride}" if stride > 1 else ""
    return Case(
        name=f"convolution {kind}, {batch}x{channels}x{side}x{side}{step}",
        make_inputs=normal(*shapes),
        ours=convolve,
        peers={"torch": of_torch, "jax": of_jax},
        flops=18.0 * results * channels / groups,
        bytes=4.0 * (sum(map(math.prod, shapes)) + results),
        tolerance=error_bound(2, 9 * channels // groups),
        reference=reference,
    )


def _pooling(channels: int, side: int) -> Case:
    """The largest of windows of 3 x 3 at a step of 2."""
    shape = (1, channels, side, side)

    @tw.jit
    def pool(x: tw.Array) -> tw.Array:
        return tw.nn.max_pool(x, 3, stride=2, padding=1)

    def reference(numpy: ModuleType, x: Array) -> Array:
        padded = numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-numpy.inf)
        windows = numpy.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return windows[:, :, ::2, ::2].max((-2, -1))

    def of_torch(torch: ModuleType, x: LibraryArray) -> LibraryArray:
        return torch.nn.functional.max_pool2d(x, 3, 2, 1)

    def of_jax(jax: ModuleType, x: LibraryArray) -> LibraryArray:
        around = ((0, 0), (0, 0), (1, 1), (1, 1))
        return jax.lax.reduce_window(x, -math.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), around)

    size = math.prod(shape)
    return Case(
        name=f"max pool {sizes(shape)}, step 2",
        make_inputs=normal(shape),
        ours=pool,
        peers={"torch": of_torch, "jax": of_jax},
        flops=2.25 * size,
        bytes=5.0 * size,
        tolerance=0.0,
        reference=reference,
    )


def _powers(size: int) -> Case:
    @tw.jit
    def power(x: tw.Array, y: tw.Array) -> tw.Array:
        return tw.pow(x, y)

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        base, exponent = normal((size,), (size,))(generator)
        return np.abs(base) + np.float32(0.01), exponent

    def function(library: ModuleType, x: LibraryArray, y: LibraryArray) -> LibraryArray:
        return x**y

    more = {"flops": float(size), "bytes": 12.0 * size, "tolerance": error_bound(4), "make_inputs": inputs}
    return moving(f"pow {size}", ((size,),), power, dict.fromkeys(_LIBRARIES, function), **more)


def _quotients(size: int) -> Case:
    @tw.jit
    def quotient(x: tw.Array) -> tw.Array:
        return x // 7

    def inputs(generator: np.random.Generator) -> tuple[Array, ...]:
        return (generator.integers(-(2**31), 2**31, size, np.int32),)

    def function(library: ModuleType, x: LibraryArray) -> LibraryArray:
        return x // 7

    peers = dict.fromkeys(_LIBRARIES, function)
    return moving(f"i32 // 7, {size}", ((size,),), quotient, peers, dtype="i32", make_inputs=inputs)
