"""Programs are given to ttnn: to one that stands for it, whose kernels our simulator runs, and to the real one where
`TT_METAL_SIMULATOR` names the vendor's simulator."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulators import ttnn as fake_ttnn
from tilewright import dtypes
from tilewright.dialects import cores, tile
from tilewright.errors import DeviceError, ResourceUnavailable, UnsupportedOnTargetError
from tilewright.semantics.cores import DeviceArray, run_program
from tilewright.targets.grid import core_program, device
from tilewright.targets.grid.emit import emit_program

FORMATS = {"float32": "f32", "bfloat16": "bf16", "bfloat8_b": "bfp8", "int32": "i32", "uint32": "u32"}


class Tensor(fake_ttnn.Tensor):
    """A tensor on the device; the number of its pages stands for its address. `config`: where it is."""

    def __init__(self, array: DeviceArray, config: Any) -> None:
        super().__init__(len(array.pages), array.format.bits)
        self.array, self.config = array, config


def described_config(config: Any) -> str:
    """The arguments of what ttnn is told of a place, in a line."""
    if config == "dram":
        return config
    *words, spec = config.args
    first, second, orientation = spec.args
    cores, shard = (first, second) if spec.kind == "ShardSpec" else (second, first)
    (within,) = cores.args[0]
    last = within.args[1]
    return f"{' '.join(words)} {spec.kind} {[*shard]} {last.y + 1}x{last.x + 1} {orientation}"


class Numbers:
    """What stands for a tensor of torch."""

    def __init__(self, array: Any) -> None:
        self.array, self.dtype = array, array.dtype

    def numpy(self) -> Any:
        return self.array


class Runtime:
    """Stands for ttnn: a device of some kind, on which kernels run by what they were printed from."""

    def __init__(self, arch: str) -> None:
        self.arch, self.kernels, self.launched = arch, dict[str, tile.KernelOp](), list[str]()
        self.configs: list[str] = []
        self.machine: Any = None

    def module(self) -> types.ModuleType:
        module = types.ModuleType("ttnn")
        vars(module).update(vars(fake_ttnn.module()))
        vars(module).update(TILE_LAYOUT="tiles", ROW_MAJOR_LAYOUT="rows", DRAM_MEMORY_CONFIG="dram", Shape=tuple)
        vars(module).update(
            open_device=lambda device_id: fake_ttnn.Device(),
            close_device=lambda device: None,
            get_arch_name=lambda: self.arch,
            from_torch=self.from_torch,
            to_torch=lambda tensor: Numbers(tensor.array.to_numpy()),
            allocate_tensor_on_device=lambda shape, dtype, layout, _, config: self.undefined(
                shape, dtype, layout, config
            ),
            clone=lambda t: Tensor(dataclasses.replace(t.array, pages=+t.array.pages), t.config),
            generic_op=self.generic_op,
        )
        return module

    def from_torch(self, numbers: Numbers, *, dtype: str, layout: str, memory_config: Any, **_: Any) -> Tensor:
        made = DeviceArray.from_numpy(numbers.array, format=FORMATS[dtype], by_rows=layout == "rows")
        return self.noted(made, memory_config)

    def undefined(self, shape: Sequence[int], dtype: str, layout: str, config: Any) -> Tensor:
        type = dtypes.i32 if "int" in dtype else dtypes.f32
        made = DeviceArray.undefined(tuple(shape), type, format=FORMATS[dtype], by_rows=layout == "rows")
        return self.noted(made, config)

    def noted(self, array: DeviceArray, config: Any) -> Tensor:
        self.configs.append(described_config(config))
        return Tensor(array, config)

    def generic_op(self, tensors: Sequence[Tensor], described: Any) -> None:
        """Those that are read first, then those that are written."""
        kernel = self.kernels[described.kernels[0].kernel_source]
        self.launched.append(kernel.sym_name)
        effects = kernel.effects
        order = [n for n, effect in enumerate(effects) if effect == tile.IN]
        order += [n for n, effect in enumerate(effects) if effect != tile.IN]
        arrays = {number: tensor.array for number, tensor in zip(order, tensors, strict=True)}
        for number, tensor in zip(order, tensors, strict=True):
            assert (tensor.config == "dram") == (cores.stored_pages(kernel.refs[number]).placement is None)
        # As many dims as the kernel's, of the same pages.
        own = [
            dataclasses.replace(each, shape=tile.ref_type(ref).shape)
            for ref, each in ((ref, arrays[n]) for n, ref in enumerate(kernel.refs))
        ]
        run_program(kernel, own, self.machine)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime("wormhole_b0")
    torch = types.ModuleType("torch")
    vars(torch).update(from_numpy=Numbers, bfloat16="bfloat16", float32="float32")
    monkeypatch.setitem(__import__("sys").modules, "ttnn", made.module())
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    monkeypatch.setenv(device.SIMULATOR, "libttsim.so")
    return made


def compiled(function: Any, arrays: Sequence[Any], runtime: Runtime, **options: Any) -> Any:
    made: Any = tw.jit(function).lower(*arrays).compile(target="grid:wormhole", **options)
    unit = made.executable.unit
    runtime.machine = unit.machine
    for kernel in unit.kernels():
        source = emit_program(kernel, unit.machine)
        runtime.kernels[source.reader or source.writer or ""] = kernel
    return made


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "two kernels": (lambda x, y: tw.nn.softmax(x @ y, axis=-1), (normal(40, 70), normal(70, 33)), {}),
    "narrow": (lambda x: tw.exp(x) + 1, (normal(3, 40, 50, dtype=ml_dtypes.bfloat16),), {}),
    "a row": (lambda x: tw.cumsum(x, axis=0), (normal(100),), {}),
    "places": (lambda x: tw.argmax(x, axis=1), (normal(40, 70),), {}),
    "integers": (lambda x: x * 3 - 1, (np.arange(99, dtype=np.int32).reshape(9, 11),), {}),
    "stored": (lambda x: -x, (normal(40, 32),), {"storage": {"x": "bfp8"}}),
    "by rows": (
        lambda x, y: (tw.exp(x) + y, y),
        (normal(3, 40, 50), normal(50)),
        {"storage": {"x": "row-major", "y": "bf16 row-major", "return[0]": "row-major", "return[1]": "bf16 row-major"}},
    ),
    "a view": (lambda x: tw.reshape(x * 2, (64, 1, 96)) + 1, (normal(64, 96),), {}),
    "several results": (lambda x: (x + 1, tw.sum(x)), (normal(40, 50),), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_simulator(name: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    function, arrays, options = CASES[name]
    made = compiled(function, arrays, runtime, **options)
    found = made(*arrays)
    assert runtime.launched
    monkeypatch.delenv(device.SIMULATOR)
    runtime.launched.clear()
    expected = made(*arrays)
    assert not runtime.launched
    for got, wanted in zip(*(each if isinstance(each, tuple) else (each,) for each in (found, expected)), strict=True):
        got, wanted = np.asarray(got), np.asarray(wanted)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize(
    ("shape", "storage", "config"),
    [
        ((300, 96), "l1 height", "HEIGHT_SHARDED L1 ShardSpec [32, 96] 8x8 ROW_MAJOR"),
        ((4, 600, 96), "l1 height on 2x4", "HEIGHT_SHARDED L1 ShardSpec [320, 96] 2x4 ROW_MAJOR"),
        ((64, 300), "l1 width on 2x2 by columns", "WIDTH_SHARDED L1 ShardSpec [64, 96] 2x2 COL_MAJOR"),
        ((2, 96, 300), "l1 block on 3x2", "BLOCK_SHARDED L1 ShardSpec [64, 160] 3x2 ROW_MAJOR"),
        ((300, 96), "l1", "L1 NdShardSpec [32, 32] 8x8 ROW_MAJOR"),
        ((1, 300, 96), "bf16 l1 2x1 on 2x2", "L1 NdShardSpec [1, 64, 32] 2x2 ROW_MAJOR"),
        ((4, 2, 60, 96), "l1 2x1 on 2x2", "L1 NdShardSpec [1, 1, 64, 32] 2x2 ROW_MAJOR"),
    ],
)
def test_arrays_are_placed_by_ttnn(shape: Any, storage: str, config: str, runtime: Runtime) -> None:
    x = normal(*shape)
    made = compiled(lambda x: -x, [x], runtime, storage={"x": storage})
    found = made(x)
    assert runtime.configs[0] == config
    np.testing.assert_allclose(found, -x, rtol=2**-8)


def test_shards_that_ttnn_does_not_deal_are_said(runtime: Runtime) -> None:
    x = normal(4, 64, 96)
    made = compiled(lambda x: -x, [x], runtime, storage={"x": "l1 4x1 on 2x2"})
    with pytest.raises(UnsupportedOnTargetError, match="3 dims around the cores in shards of 128x32"):
        made(x)


def test_what_is_missing_is_said(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(32, 32)
    made = compiled(lambda x: -x, [x], runtime)
    runtime.arch = "blackhole"
    with pytest.raises(ResourceUnavailable, match="the program is for wormhole, and the device is blackhole"):
        made(x)
    wide = compiled(lambda x: x + 1, [np.zeros((4, 4), np.int64)], runtime)
    runtime.arch = "wormhole_b0"
    with pytest.raises(DeviceError, match="does not fit 32 bits"):
        wide(np.full((4, 4), 2**40))
    half = normal(32, 32, dtype=np.float16)
    with pytest.raises(UnsupportedOnTargetError, match="f16"):
        tw.jit(lambda x: -x).lower(half).compile(target="grid:wormhole")(half)
    monkeypatch.setitem(__import__("sys").modules, "ttnn", None)
    with pytest.raises(ResourceUnavailable, match="ttnn is not installed"):
        made(x)


@pytest.mark.parametrize(("arch", "machine"), [("wormhole_b0", "wormhole"), ("blackhole", "blackhole")])
def test_the_machine_is_the_one_that_ttnn_opens(arch: str, machine: str, runtime: Runtime) -> None:
    runtime.arch = arch
    assert device.machine_name() == machine


# By units: some simulators have not all of them.
ON_DEVICE: dict[str, tuple[Any, tuple[Any, ...], float]] = {
    "moves": (lambda x: x.T, (normal(64, 96),), 0),
    "matrix unit": (lambda x, y: x @ y, (normal(64, 96), normal(96, 64)), 2**-8),
    "sums": (lambda x: tw.sum(x, axis=1), (normal(64, 96).astype(ml_dtypes.bfloat16),), 2**-6),
    "vector unit": (lambda x: tw.exp(x) + 1, (normal(64, 96),), 2**-8),
}


@pytest.mark.skipif(device.SIMULATOR not in os.environ, reason="needs ttnn and the vendor's simulator")
@pytest.mark.parametrize("name", ON_DEVICE)
def test_the_vendors_simulator_agrees(name: str) -> None:
    function, arrays, bound = ON_DEVICE[name]
    lowered: Any = tw.jit(function).lower(*arrays)
    got = np.asarray(lowered.compile(f"grid:{device.machine_name()}")(*arrays)).astype(np.float64)
    wanted = np.asarray(lowered.compile("cpu")(*arrays)).astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound * np.abs(wanted).max())


def test_saved_programs_run_by_the_source_in_their_file(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(x: Any) -> Any:
        return tw.while_loop(lambda s: tw.max(s) > 1, lambda s: s / 2, x), tw.sum(x, axis=0)

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    made = compiled(halved, [x], runtime)
    made.save(str(tmp_path / "halved.twp"))
    loaded: Any = tw.load(tmp_path / "halved.twp")
    monkeypatch.setattr(core_program, "emit_program", None)
    found, sums = loaded(x)
    np.testing.assert_array_equal(found, x / 32)
    np.testing.assert_array_equal(sums, x.sum(axis=0))
    assert len(runtime.launched) > 10
