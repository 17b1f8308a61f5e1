"""What is said of compiled kernels, and how often they set states of units."""

from __future__ import annotations

import json

import pytest

from tests.cores.builder import Builder
from tests.cores.grid_programs import chain, compiled, program_of, types
from tilewright.machines.machine import load
from tilewright.semantics.cores import run_program


@pytest.mark.parametrize("target", ["grid:wormhole", "grid:blackhole"])
@pytest.mark.parametrize("name", ["softmax", "matmul, bias, gelu", "layer norm", "attention"])
def test_states_are_set_nearly_as_seldom_as_can_be(name: str, target: str) -> None:
    """Within a tenth, for each kernel. Of single units, cores set some that turn out to have no point to compute."""
    for kernel, ran in compiled(name, target).timing:
        assert ran.configures.keys() == ran.fewest_configures.keys()
        for unit, count in ran.configures.items():
            assert ran.fewest_configures[unit] <= count <= 1.25 * ran.fewest_configures[unit], (kernel, unit)
        assert sum(ran.configures.values()) <= 1.1 * sum(ran.fewest_configures.values()), kernel


def test_changes_of_states_are_counted_by_what_is_used() -> None:
    """Setting a state that stays, or is not used, is no change that the order needs."""
    b = Builder((1, 1), [])
    x = b.queue("bf16", 1)
    with b.thread("reader"):
        b.reserve(x)
        b.generate(x, "d0")
        b.push(x)
    with b.thread("compute"):
        b.wait(x)
        b.registers("acquire")
        b.configure("unpack_a", "bf16")
        for state in ("copy none", "copy row", "copy none"):
            b.configure("matrix", state)
        with b.loop(3):
            b.configure("matrix", "copy none")
            b.copy(x, configured=False)
        b.registers("commit")
        b.pop(x)
        b.registers("wait")
        b.registers("release")
    ran = run_program(b.finished(), [], load("wormhole"))
    assert ran.configures == {"unpack_a": 1, "matrix": 6}
    assert ran.fewest_configures == {"unpack_a": 1, "matrix": 1}


def test_costs_are_plain_values() -> None:
    cost = compiled("softmax").cost()
    kernel, *_ = json.loads(json.dumps(cost.document()))["kernels"]
    assert cost["machine"] == "wormhole"
    assert cost["seconds"] == pytest.approx(sum(each["cycles"] for each in cost["kernels"]) / 1e9)
    assert 1 <= kernel["cores"][0] * kernel["cores"][1] <= 64
    assert kernel["queue_bytes"] == sum(queue["bytes"] for queue in kernel["queues"]) < kernel["memory_bytes"]
    assert kernel["roofline_fraction"] == pytest.approx(kernel["roofline_cycles"] / kernel["cycles"])
    assert 0.1 < kernel["roofline_fraction"] < 1
    assert sum(kernel["configures"].values()) >= sum(kernel["fewest_configures"].values()) > 0
    assert {"copies", "vector transcendental", "packs"} <= {kind["kind"] for kind in kernel["kinds"]}


def test_an_explanation_says_what_limits_a_kernel() -> None:
    program = compiled("matmul 512")
    text, (report,) = program.explain(), program.reports
    assert report.cost is not None
    assert "one core of each row multicasts pages" in text
    assert f"contract_0 on {report.rows} x {report.columns} cores: {report.run.cycles:.0f} cycles simulated" in text
    assert f"{report.cost.roofline_cycles:.0f} are the least that the banks of DRAM allow" in text
    assert "limited by the reader" in text
    assert f"states of units set {report.configures} times, {report.fewest_configures} are the least" in text
    assert f"{report.queue_bytes} of 1393312 bytes of a core's memory" in text
    assert program_of(chain, types((0, 32), (0, 32))).explain() == ""
