"""The fixtures of the tests of chips, which compile matmuls for them by schedules that are given."""

from __future__ import annotations

from tests.cuda.conftest import by_warpgroups, in_tensor_memory

__all__ = ["by_warpgroups", "in_tensor_memory"]
