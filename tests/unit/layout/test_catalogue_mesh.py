"""Shardings over a mesh of devices against blocks cut by hand."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from catalogue_oracle import numbered, padded
from hypothesis import given
from hypothesis import strategies as st
from layout_oracle import SMALL, coordinate_arrays

from tilewright.errors import LayoutError
from tilewright.layout import Layout, Partial, draw, same_map
from tilewright.layout.catalogue import mesh_sharding

MESH = {"data": 2, "model": 3, "expert": 2}


def blocks(array, mesh, dims):
    """The block of each device (a tuple of coordinates on the mesh), every block of one size."""
    parts = [prod(mesh[name] for name in names) for names in dims]
    whole = padded(array, parts)
    found = {}
    for device in np.ndindex(*mesh.values()):
        at = dict(zip(mesh, device, strict=True))
        box = []
        for size, names in zip(whole.shape, dims, strict=True):
            number, step = 0, size
            for name in names:
                step //= mesh[name]
                number = number * mesh[name] + at[name]
            box.append(slice(number * step, (number + 1) * step))
        found[device] = whole[tuple(box)].ravel()
    return found


def check_devices(layout, array, mesh, dims):
    """Each device has exactly its block, padding left out."""
    expected = blocks(array, mesh, dims)
    arrays = coordinate_arrays(layout)
    memory = {device: np.zeros_like(block) for device, block in expected.items()}
    zeros = np.zeros_like(arrays["mem"]) if "mem" in arrays else np.zeros_like(next(iter(arrays.values())))
    for index in np.ndindex(*array.shape):
        for copy in range(zeros.shape[-1]):
            device = tuple(int(arrays.get(f"device.{name}", zeros)[index][copy]) for name in mesh)
            memory[device][arrays.get("mem", zeros)[index][copy]] = array[index]
    for device, block in expected.items():
        assert np.array_equal(memory[device], block)


@pytest.mark.parametrize(
    "dims",
    [
        [(), ()],
        [("data",), ()],
        [("data",), ("model",)],
        [("data", "model"), ()],
        [("model", "data"), ("expert",)],
        [(), ("expert", "model", "data")],
    ],
)
@pytest.mark.parametrize("shape", [(12, 24), (7, 13)])
def test_blocks_and_copies(shape, dims):
    """Several axes on a dim nest, the first outermost; axes that no dim names hold copies; dims are padded."""
    check_devices(mesh_sharding(shape, MESH, dims), numbered(shape), MESH, dims)


@SMALL
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.permutations(list(MESH)), st.data())
def test_any_assignment(shape, names, data):
    owners = [data.draw(st.integers(-1, len(shape) - 1)) for _ in names]
    dims = [tuple(name for name, owner in zip(names, owners, strict=True) if owner == dim) for dim in range(len(shape))]
    check_devices(mesh_sharding(shape, MESH, dims), numbered(shape), MESH, dims)


def test_partial_sums():
    """A row-parallel product leaves terms along the axis that divided its depth."""
    layout = mesh_sharding((8, 8), MESH, [("data",), ()], {"model": "add"})
    assert layout.partial == (Partial(3, 1, "device.model", "add"),)
    assert [copy.axis for copy in layout.replica] == ["device.expert"]
    assert same_map(
        layout,
        Layout.parse(
            "(8, 8) : [2@device.data 4@mem*8 | 8@mem] + replica[2@device.expert] + partial[add 3@device.model]"
        ),
    )


def test_axes_of_one_device_leave_nothing_behind():
    assert same_map(
        mesh_sharding((8,), {"data": 1, "model": 2}, [("model",)], {"data": "add"}),
        mesh_sharding((8,), {"model": 2}, [("model",)]),
    )


def test_a_drawing():
    layout = mesh_sharding((4, 4), {"y": 2, "x": 2}, [("y",), ()])
    assert draw(layout, "device.y", "device.x", "mem") == "\n".join(
        [
            "device.y/device.x/mem of (4, 4)",
            "  |     0      1      2      3",
            "--+---------------------------",
            "0 | 0/0/0  0/0/1  0/0/2  0/0/3",
            "1 | 0/0/4  0/0/5  0/0/6  0/0/7",
            "2 | 1/0/0  1/0/1  1/0/2  1/0/3",
            "3 | 1/0/4  1/0/5  1/0/6  1/0/7",
            "each repeated over 2@device.x*1",
        ]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: mesh_sharding((8, 8), MESH, [("data",)]),
        lambda: mesh_sharding((8, 8), MESH, ["data", ()]),
        lambda: mesh_sharding((8, 8), MESH, [("rows",), ()]),
        lambda: mesh_sharding((8, 8), MESH, [("data",), ("data",)]),
        lambda: mesh_sharding((8, 8), MESH, [("data", "data"), ()]),
        lambda: mesh_sharding((8, 8), MESH, [("data",), ()], {"data": "add"}),
        lambda: mesh_sharding((8, 8), MESH, [(), ()], {"rows": "add"}),
        lambda: mesh_sharding((8, 8), {}, [("data",), ()]),
        lambda: mesh_sharding((8, 8), {"data": 0}, [("data",), ()]),
    ],
)
def test_mistakes_are_layout_errors(make):
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.help
