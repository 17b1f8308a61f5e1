"""The FileCheck of these tests can fail."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import expect, filecheck, parse, unit_of

TEXT = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = array.map(%x) {fn = "exp"} : tensor<2xf32>
  %z = array.map(%y) {fn = "log"} : tensor<2xf32>
  func.return %z : tensor<2xf32>
}
"""


def test_checks_that_hold_pass() -> None:
    checks = """
    CHECK: [[Y:%[0-9]+]] = array.map(%0) {fn = "exp"}
    CHECK-NEXT: array.map([[Y]]) {fn = "log"}
    CHECK-NOT: array.map
    """
    expect(unit_of(parse(TEXT), {}), checks)


@pytest.mark.parametrize(
    "checks",
    [
        'CHECK: {fn = "sin"}',
        'CHECK: {fn = "log"}\nCHECK: {fn = "exp"}',
        'CHECK-NOT: {fn = "exp"}',
        'CHECK: {fn = "exp"}\nCHECK-NOT: {fn = "log"}',
        'CHECK: func.func\nCHECK-NEXT: {fn = "log"}',
        "CHECK: [[Y:%[0-9]+]] = array.map(%0)\nCHECK: array.map(%0[[Y]])",
        "no checks at all",
    ],
)
def test_checks_that_do_not_hold_fail(checks: str) -> None:
    with pytest.raises(AssertionError):
        expect(unit_of(parse(TEXT), {}), checks)


def test_the_reason_is_shown() -> None:
    matcher = filecheck("one\ntwo\n", "CHECK: three")
    assert matcher.run() == 1
    assert "three" in matcher.stderr.getvalue()
