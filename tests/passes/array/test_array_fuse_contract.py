"""What `array-fuse-contract` puts around a product, what stays outside, and the reasons it records."""

from __future__ import annotations

import pytest

from tests.passes.pass_support import Make, check_meaning, expect, remarks, run_through
from tests.programs import Program, matmul_epilogue
from tilewright.frontend.trace import Value
from tilewright.passes.array.array_fuse_contract import ArrayFuseContractPass

NAME = ArrayFuseContractPass.name


def product(p: Program) -> Value:
    return p.dot(p.array(3, 4), p.array(4, 3), 0, 1, 0)


def turned(p: Program, x: Value) -> Value:
    return p.add("transpose", [x], permutation=(1, 0))[0]


def test_bias_and_activation_join_the_product() -> None:
    unit = run_through(matmul_epilogue, ArrayFuseContractPass)
    expect(
        unit,
        """
        CHECK: func.func
        CHECK-NEXT: array.fused(%0, %1, %2) {kind = "contract", why = "matmul with epilogue add sigmoid multiply"}
        CHECK: [[Y:%[0-9]+]] = array.contract
        CHECK-NEXT: [[B:%[0-9]+]] = array.broadcast
        CHECK-NEXT: [[Z:%[0-9]+]] = array.map([[Y]], [[B]]) {fn = "add"}
        CHECK-NEXT: [[S:%[0-9]+]] = array.map([[Z]]) {fn = "sigmoid"}
        CHECK-NEXT: array.map([[Z]], [[S]]) {fn = "multiply"}
        CHECK: func.return
        """,
    )
    assert [decision for decision, _ in remarks(unit, NAME)] == ["group"]


def test_index_maps_of_operands_join_and_what_computes_them_does_not() -> None:
    def program(p: Program) -> list[Value]:
        return [p.dot(p.map("exp", p.array(3, 4)), turned(p, p.array(5, 4)), 0, 1, 0)]

    expect(
        run_through(program, ArrayFuseContractPass),
        """
        CHECK: [[X:%[0-9]+]] = array.map(%0) {fn = "exp"}
        CHECK-NEXT: array.fused(%1, [[X]]) {kind = "contract", why = "no epilogue"}
        CHECK-NEXT: ^
        CHECK-NEXT: array.transpose
        CHECK-NEXT: array.contract
        CHECK-NEXT: array.yield
        """,
    )


def test_a_convolution_takes_its_activation() -> None:
    """One that no pass before has made a matmul of."""
    unit = check_meaning(
        ArrayFuseContractPass(),
        """
        func.func @main(%x: tensor<1x2x6x7xf32>, %w: tensor<3x2x3x3xf32>) -> tensor<1x3x6x7xf32> {
          %y = array.convolve(%x, %w) {strides = array<i64: 1, 1>, low = array<i64: 1, 1>, high = array<i64: 1, 1>,
            dilation = array<i64: 1, 1>, groups = 1 : i64} : tensor<1x3x6x7xf32>
          %zero = array.constant() {value = 0.0 : f64, resource = ""} : tensor<1x3x6x7xf32>
          %z = array.map(%y, %zero) {fn = "maximum"} : tensor<1x3x6x7xf32>
          func.return %z : tensor<1x3x6x7xf32>
        }
        """,
    )
    expect(
        unit,
        """
        CHECK: array.fused(%0, %1) {kind = "convolve", why = "matmul with epilogue maximum"}
        CHECK: array.convolve
        CHECK: {fn = "maximum"}
        CHECK: array.yield
        """,
    )


def test_several_users_share_the_group_and_each_result_leaves_it() -> None:
    def program(p: Program) -> list[Value]:
        y = product(p)
        return [y, p.map("exp", y), p.map("negative", y)]

    expect(
        run_through(program, ArrayFuseContractPass),
        """
        CHECK: %2, %3, %4 = array.fused(%0, %1) {kind = "contract", why = "matmul with epilogue exp negative"}
        CHECK: [[Y:%[0-9]+]] = array.contract
        CHECK: [[E:%[0-9]+]] = array.map([[Y]]) {fn = "exp"}
        CHECK: [[N:%[0-9]+]] = array.map([[Y]]) {fn = "negative"}
        CHECK: array.yield([[Y]], [[E]], [[N]])
        CHECK: func.return %2, %3, %4
        """,
    )


def test_the_sum_of_two_products_belongs_to_the_first() -> None:
    def program(p: Program) -> list[Value]:
        return [p.map("add", product(p), product(p))]

    expect(
        run_through(program, ArrayFuseContractPass),
        """
        CHECK: [[SECOND:%[0-9]+]] = array.fused(%2, %3) {kind = "contract", why = "no epilogue"}
        CHECK: array.fused(%0, %1, [[SECOND]]) {kind = "contract", why = "matmul with epilogue add"}
        """,
    )


def test_a_transpose_that_would_be_stored_anyway_is_stored_by_the_group() -> None:
    def program(p: Program) -> list[Value]:
        return [p.add("reshape", [turned(p, p.map("exp", product(p)))], shape=(9,))[0]]

    expect(
        run_through(program, ArrayFuseContractPass),
        """
        CHECK: [[E:%[0-9]+]] = array.map({{.*}}) {fn = "exp"}
        CHECK-NEXT: [[T:%[0-9]+]] = array.transpose([[E]])
        CHECK-NEXT: array.yield([[T]])
        CHECK: array.reshape
        """,
    )


def test_a_transpose_whose_user_computes_is_left_to_the_user() -> None:
    def program(p: Program) -> list[Value]:
        return [p.map("add", turned(p, product(p)), p.array(3, 3))]

    expect(
        run_through(program, ArrayFuseContractPass),
        """
        CHECK: array.fused(%0, %1)
        CHECK: array.yield
        CHECK: array.transpose
        CHECK: {fn = "add"}
        """,
    )


def read_transposed(p: Program) -> list[Value]:
    y = product(p)
    return [p.map("add", y, turned(p, y))]


def less_its_row_maximum(p: Program) -> list[Value]:
    y = product(p)
    return [p.map("subtract", y, p.broadcast(p.reduce(y, "maximum", (1,)), y.shape, (0,)))]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (read_transposed, "reads the matmul at other coordinates"),
        (less_its_row_maximum, "another operand depends on the matmul too"),
    ],
)
def test_what_needs_the_whole_product_stays_outside_and_says_why(make: Make, reason: str) -> None:
    unit = run_through(make, ArrayFuseContractPass)
    expect(unit, 'CHECK: why = "no epilogue"\nCHECK: array.yield\nCHECK: array.map')
    assert remarks(unit, NAME) == [("not in epilogue", reason), ("group", "no epilogue")]
