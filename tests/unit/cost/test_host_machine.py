"""The machine of this host, as far as it is not as its file says."""

import pytest

from tilewright.machines import machine as machines
from tilewright.runtime.cpu import features as cpu_features
from tilewright.targets.cpu import host


@pytest.mark.parametrize(("reported_mib", "cores", "taken_mib"), [(480, 2, 32), (480, 64, 480), (6, 2, 6)])
def test_third_level_cache_of_a_virtual_machine(monkeypatch, reported_mib, cores, taken_mib):
    level = cpu_features.CacheLevel(3, "unified", reported_mib << 20, 64, cores)
    monkeypatch.setattr(cpu_features, "cache_levels", lambda: (level,))
    monkeypatch.setattr(cpu_features, "physical_cores", lambda: cores)
    found = host.host_machine.__wrapped__()
    assert found.memory("l3").bytes == taken_mib << 20
    assert found.memory("l2").bytes == machines.load(found.name).memory("l2").bytes
