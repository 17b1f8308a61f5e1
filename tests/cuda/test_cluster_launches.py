"""Launches of thread block clusters on the emulated driver: sizes that the kernel, the grid and the launch agree on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulators.cuda_driver import LEGACY, FakeDriver
from tilewright.runtime.cuda.driver import DriverFailure
from tilewright.runtime.cuda.steps import Kernel

RANKS = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry ranks(.param .u64 p0)
DIRECTIVES
{
.reg .b32 %r<8>; .reg .b64 %d<8>;
ld.param.b64 %d0, [p0]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %d1, %r0, 4; add.s64 %d2, %d0, %d1;
mov.u32 %r1, %cluster_ctarank; st.global.b32 [%d2], %r1;
ret;
}
"""
OF_TWO = ".explicitcluster\n.reqnctapercluster 2, 1, 1"


def launched(directives: str, blocks: int, cluster: int) -> list[int]:
    """The rank of each block."""
    driver = FakeDriver()
    with driver.context(0):
        function = driver.function(driver.load_module(RANKS.replace("DIRECTIVES", directives).encode()), "ranks")
        address = driver.array(np.zeros(blocks, np.int32))
        kernel = Kernel(
            name="ranks", blocks=blocks, threads=32, shared_bytes=0, parameters=(4 * blocks,), cluster=cluster
        )
        driver.launch(function, kernel, [address], LEGACY)
        driver.synchronise_all()
        return driver.contents(address, 4 * blocks).view(np.int32).tolist()


def test_clusters_of_a_kernel_and_of_a_launch() -> None:
    assert launched("", 4, 1) == [0, 0, 0, 0]
    assert launched("", 6, 3) == [0, 1, 2, 0, 1, 2]
    assert launched(OF_TWO, 4, 2) == [0, 1, 0, 1]
    # A plain launch of a kernel that says how large its clusters are.
    assert launched(OF_TWO, 4, 1) == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("directives", "blocks", "cluster"), [(OF_TWO, 3, 1), (OF_TWO, 4, 4), ("", 6, 4), (".explicitcluster", 4, 1)]
)
def test_sizes_that_do_not_fit(directives: str, blocks: int, cluster: int) -> None:
    with pytest.raises(DriverFailure, match="CUDA_ERROR_INVALID_CLUSTER_SIZE"):
        launched(directives, blocks, cluster)
