"""The fixtures of the tests of chips, which compile for them by schedules that are given."""

from __future__ import annotations

from tests.cuda.conftest import by_groups, by_warpgroups, driver, in_tensor_memory, no_assembler, small

__all__ = ["by_groups", "by_warpgroups", "driver", "in_tensor_memory", "no_assembler", "small"]
