"""Calling programs: results against NumPy, both ways in, what is refused and why."""

from __future__ import annotations

import subprocess
import sys
import timeit
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_programs import (
    STATUS_IR,
    X,
    Y,
    add_ir,
    compile_ir,
    copy_ir,
    make_add,
    make_copy,
    make_in_place_add,
    make_manifest,
    make_program,
    spec,
)

import tilewright as tw
from tilewright.dtypes import ALL
from tilewright.errors import (
    ArgumentError,
    CompilerBug,
    CpuFeatureError,
    DTypeError,
    OutOfBoundsError,
    OverlapError,
    ProgramFileError,
    ShapeError,
    TilewrightError,
)
from tilewright.events import capture
from tilewright.options import options
from tilewright.runtime.arguments import check_overlap, host_bounds, overlaps_itself
from tilewright.runtime.cpu import features as cpu_features
from tilewright.runtime.cpu import native
from tilewright.runtime.manifest import Alias, Constant, Message, place_constants
from tilewright.runtime.program import MISMATCH, Program, load
from tilewright.targets.cpu.support import support_object


def test_this_interpreter_has_the_native_function(add):
    assert add.function() is not None


def test_a_call_returns_a_new_array(add, way_in):
    program = make_add(4)
    assert (program.function() is None) == (way_in == "python")
    first, second = program(X, Y), program(X, Y)
    np.testing.assert_array_equal(first, X + Y)
    assert not np.shares_memory(first, second)
    assert first.flags.owndata
    assert type(first) is np.ndarray


@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 5), (1,) * 8])
def test_every_dtype_and_rank_comes_through_unchanged(dtype, shape, way_in):
    program = make_copy(spec("x", *shape, dtype=dtype.name))
    bits = np.random.default_rng(1).integers(0, 2 if dtype.is_bool else 120, (*shape, dtype.itemsize), np.uint8)
    x = np.frombuffer(bits.tobytes(), dtype.numpy).reshape(shape)
    y = program(x)
    assert (y.dtype, y.shape) == (dtype.numpy, shape)
    assert y.tobytes() == x.tobytes()
    if way_in == "native":
        assert program.function()(x) is not MISMATCH


def test_several_outputs_are_a_tuple_and_none_an_empty_one(way_in):
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3), np.array(2.5), np.array([True, False])]
    program = make_copy(spec("a", 2, 3, dtype="i16"), spec("b", dtype="f64"), spec("c", 2, dtype="bool"))
    copies = program(*arrays)
    assert type(copies) is tuple
    for copy, array in zip(copies, arrays, strict=True):
        np.testing.assert_array_equal(copy, array)
    assert make_program(copy_ir(), inputs=(), outputs=())() == ()


def test_out_is_written_and_returned(way_in):
    program = make_add(4)
    out = np.empty(4, np.float32)
    for given_out in (out, (out,), [out]):
        out[:] = 0
        assert program(X, Y, out=given_out) is out
        np.testing.assert_array_equal(out, X + Y)
    pair = make_copy(spec("a", 2), spec("b", 3))
    outs = (np.empty(2, np.float32), np.empty(3, np.float32))
    results = pair(X[:2], Y[:3], out=outs)
    assert results[0] is outs[0]
    assert results[1] is outs[1]
    np.testing.assert_array_equal(outs[1], Y[:3])


def awkward(array: np.ndarray) -> dict[str, np.ndarray]:
    """The same values in arrays that native code cannot use as they are."""
    spread = np.empty((*array.shape, 2), array.dtype)[..., 0]
    spread[...] = array
    raw = np.empty(array.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array

    class Subclass(np.ndarray):
        pass

    read_only = array.copy()
    read_only.flags.writeable = False
    return {
        "strided": spread,
        "reversed": array[::-1].copy()[::-1],
        "unaligned": unaligned,
        "subclass": array.copy().view(Subclass),
        "read-only": read_only,
        "fortran": np.asfortranarray(array),
    }


@pytest.mark.parametrize("kind", ["strided", "reversed", "unaligned", "subclass", "read-only", "fortran"])
def test_awkward_inputs_are_copied(kind, add):
    np.testing.assert_array_equal(add(awkward(X)[kind], Y), X + Y)
    np.testing.assert_array_equal(add(X, awkward(Y)[kind]), X + Y)
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(make_copy(spec("x", 3, 4))(awkward(matrix)[kind]), matrix)


@pytest.mark.parametrize("kind", ["strided", "reversed", "unaligned", "fortran", "subclass"])
def test_awkward_outputs_are_written_through(kind, add):
    out = awkward(np.zeros(4, np.float32))[kind]
    assert add(X, Y, out=out) is out
    np.testing.assert_array_equal(out, X + Y)


def test_values_equal_in_all_but_their_type_number_are_taken():
    other_i64 = np.dtype("q") if np.dtype(np.int64).char == "l" else np.dtype("l")
    x = np.arange(3).astype(other_i64)
    np.testing.assert_array_equal(make_copy(spec("x", 3, dtype="i64"))(x), x)


def test_scalars_and_lists_are_arrays_of_their_own_dtype():
    np.testing.assert_array_equal(make_copy(spec("x", 2, dtype="f64"))([1.5, 2.5]), [1.5, 2.5])
    assert make_copy(spec("x", dtype="i64"))(7) == 7
    assert make_copy(spec("x", dtype="f32"))(np.float32(1.5)) == 1.5


WRONG_CALLS = {
    "too few": (ArgumentError, (X,), {}, "takes 2 arrays (x, y), got 1"),
    "too many": (ArgumentError, (X, Y, X, Y), {}, "got 4"),
    "dtype": (DTypeError, (X, Y.astype(np.float64)), {}, "`y` of `test` must be f32[4], got dtype float64"),
    "byte order": (DTypeError, (X.astype(">f4"), Y), {}, "got dtype >f4"),
    "no array": (DTypeError, (X, None), {}, "got dtype object"),
    "scalar": (DTypeError, (X, 3), {}, "got dtype int64"),
    "shape": (ShapeError, (X[:3], Y), {}, "`x` of `test` must be f32[4], got shape (3,)"),
    "rank": (ShapeError, (X, Y.reshape(1, 4)), {}, "got shape (1, 4)"),
    "out dtype": (DTypeError, (X, Y), {"out": np.empty(4)}, "`z` of `test`"),
    "out shape": (ShapeError, (X, Y), {"out": np.empty(5, "f")}, "got shape (5,)"),
    "out count": (ArgumentError, (X, Y), {"out": (np.empty(4, "f"),) * 2}, "1 outputs, but `out` holds 2"),
    "out list": (ArgumentError, (X, Y), {"out": [[1.0] * 4]}, "not a writeable NumPy array"),
    "out read-only": (ArgumentError, (X, Y), {"out": awkward(X)["read-only"]}, "not a writeable NumPy array"),
    "threads": (ArgumentError, (X, Y), {"threads": 0}, "`threads` is 0"),
    "threads type": (ArgumentError, (X, Y), {"threads": 1.5}, "`threads` is 1.5"),
    "too many threads": (ArgumentError, (X, Y), {"threads": 257}, "1 to 256"),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_what_does_not_fit_is_refused_with_the_reason(case, way_in):
    error, arguments, keywords, words = WRONG_CALLS[case]
    with pytest.raises(error) as caught:
        make_add(4)(*arguments, **keywords)
    assert words in caught.value.message
    assert caught.value.help


def test_the_native_function_answers_what_it_does_not_handle_with_mismatch(add):
    function = add.function()
    unfit = [(X,), (X, Y, X, Y), (X, Y.astype("d")), (X[::2], Y), (X, None), (X, awkward(Y)["subclass"]), ()]
    references = sys.getrefcount(MISMATCH)
    for arguments in unfit * 100:
        assert function(*arguments) is MISMATCH
    assert sys.getrefcount(MISMATCH) == references


def test_overlap_is_an_error_unless_declared(way_in):
    program = make_add(4)
    block = np.zeros(12, np.float32)
    for x, y, out in [
        (block[:4], Y, block[:4]),
        (X, block[2:6], block[:4]),
        (X, block[3:7], block[:4]),
        (block[:4], Y, block[3:7]),
    ]:
        with pytest.raises(OverlapError, match="overlaps"):
            program(x, y, out=out)
    assert program(block[:4], block[4:8], out=block[8:]) is not None
    pair = make_copy(spec("a", 2), spec("b", 2))
    with pytest.raises(OverlapError, match=r"`b_copy`.*`a_copy`"):
        pair(X[:2], Y[:2], out=(block[:2], block[1:3]))
    nothing = make_copy(spec("a", 0), spec("b", 4))
    nothing(block[2:2], Y, out=(block[1:1], block[:4]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_overlap_is_found_exactly(x_at, y_at, out_at):
    program = make_add(4)
    block = np.arange(12, dtype=np.float32)
    x, y, out = block[x_at:][:4], block[y_at:][:4], block[out_at:][:4]
    overlapping = bool({*range(out_at, out_at + 4)} & {*range(x_at, x_at + 4), *range(y_at, y_at + 4)})
    expected = x + y
    assert (program.function()(x, y, out) is MISMATCH) == overlapping
    if overlapping:
        with pytest.raises(OverlapError):
            program(x, y, out=out)
    else:
        np.testing.assert_array_equal(out, expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=2, max_size=6), st.integers(1, 3), st.data())
def test_many_arrays_are_compared_by_their_addresses(places, n_outputs, data):
    """As by looking at each pair: inputs may overlap, outputs may not, but for a donated input and its output."""
    block = np.zeros(40, np.float32)
    arrays = [block[start : start + size] for start, size in places]
    n_inputs = max(1, len(arrays) - n_outputs)
    inputs, outputs = arrays[:n_inputs], arrays[n_inputs:]
    names = [spec(f"x{n}", len(array)) for n, array in enumerate(arrays)]
    aliases = ()
    if outputs and data.draw(st.booleans()):
        aliases = (Alias(data.draw(st.integers(0, len(outputs) - 1)), data.draw(st.integers(0, n_inputs - 1))),)
    manifest = SimpleNamespace(name="p", inputs=names[:n_inputs], outputs=names[n_inputs:], aliases=aliases)
    donated = {n_inputs + alias.output: alias.input for alias in aliases}
    met = any(
        np.may_share_memory(arrays[later], arrays[earlier]) and arrays[later].size and arrays[earlier].size
        for later in range(n_inputs, len(arrays))
        for earlier in range(later)
        if donated.get(later) != earlier
    )
    if met:
        with pytest.raises(OverlapError):
            check_overlap(manifest, inputs, outputs, host_bounds, in_place=False)
    else:
        check_overlap(manifest, inputs, outputs, host_bounds, in_place=False)


@pytest.mark.parametrize("count", [1, 40])
def test_one_array_that_is_copied_leaves_the_call_to_the_native_function(count, monkeypatch):
    program = tw.jit(lambda xs, s: [x + s.sum() for x in xs])
    xs, s = [np.full((3, 2), n, np.float32) for n in range(count)], np.arange(60, dtype=np.float32).reshape(6, 10)
    program(xs, s[::2, ::3])
    monkeypatch.setattr("tilewright.runtime.program.check_overlap", None)
    for found, x in zip(program(xs, s[::2, ::3]), xs, strict=True):
        np.testing.assert_array_equal(found, x + s[::2, ::3].sum())


def test_a_donated_input_becomes_the_output(way_in):
    program = make_in_place_add()
    x = X.copy()
    assert program(x, Y) is x
    np.testing.assert_array_equal(x, X + Y)


@pytest.mark.parametrize("kind", ["strided", "unaligned", "read-only"])
def test_a_donated_input_that_cannot_be_written_in_place_is_copied(kind, way_in):
    x = awkward(X)[kind]
    result = make_in_place_add()(x, Y)
    np.testing.assert_array_equal(result, X + Y)
    np.testing.assert_array_equal(x, X)


def test_a_donated_input_with_out(way_in):
    program = make_in_place_add()
    x, out = X.copy(), np.empty(4, np.float32)
    assert program(x, Y, out=out) is out
    np.testing.assert_array_equal(out, X + Y)
    np.testing.assert_array_equal(x, X)
    assert program(x, Y, out=x) is x
    np.testing.assert_array_equal(x, X + Y)
    strided = awkward(np.zeros(4, np.float32))["strided"]
    assert program(X.copy(), Y, out=strided) is strided
    np.testing.assert_array_equal(strided, X + Y)


def test_a_donated_input_must_not_overlap_another_one(way_in):
    x = X.copy()
    with pytest.raises(OverlapError, match="`x`, which is donated to `test`, overlaps `y`"):
        make_in_place_add()(x, x)
    np.testing.assert_array_equal(x, X)
    y = Y.copy()
    with pytest.raises(OverlapError, match="`z`, which `test` writes, overlaps `y`"):
        make_in_place_add()(x, y, out=y)
    np.testing.assert_array_equal(y, Y)


def test_constants_are_shared_not_copied_and_read_only(way_in):
    constant = np.arange(64, dtype=np.float32)
    aligned = np.empty(128, np.float32)
    start = -aligned.ctypes.data % 64 // 4
    aligned = aligned[start : start + 64]
    aligned[:] = constant
    # Buffers are input, output, constant: exchange the roles of the last two of x + y -> z.
    ir = add_ir(64).replace(
        "%y_slot = getelementptr ptr, ptr %buffers, i64 1", "%y_slot = getelementptr ptr, ptr %buffers, i64 2"
    )
    ir = ir.replace(
        "%z_slot = getelementptr ptr, ptr %buffers, i64 2", "%z_slot = getelementptr ptr, ptr %buffers, i64 1"
    )
    program = make_program(ir, (aligned,), inputs=(spec("x", 64),), outputs=(spec("z", 64),))
    x = np.full(64, 3, np.float32)
    np.testing.assert_array_equal(program(x), x + constant)
    aligned[0] = 100
    assert program(x)[0] == 103
    assert not program._constants[0].flags.writeable
    unaligned = awkward(constant)["unaligned"]
    copied = make_program(ir, (unaligned.tobytes(),), inputs=(spec("x", 64),), outputs=(spec("z", 64),))
    np.testing.assert_array_equal(copied(x), x + constant)
    assert copied._constants[0].ctypes.data % 64 == 0


def test_statuses_raise_the_error_that_the_manifest_names(way_in):
    messages = (Message(3, "TW0401", "index 9 is out of bounds", "clip it"), Message(4, "TW9999", "unknown class"))
    inputs, outputs = (spec("x", 1, dtype="i32"),), (spec("y", 5),)
    program = make_program(STATUS_IR, inputs=inputs, outputs=outputs, messages=messages)
    assert program(np.array([0], np.int32)).shape == (5,)
    for _ in range(3):
        with pytest.raises(OutOfBoundsError) as caught:
            program(np.array([3], np.int32))
        assert (caught.value.message, caught.value.help) == ("index 9 is out of bounds", "clip it")
    with pytest.raises(CompilerBug, match="unknown class"):
        program(np.array([4], np.int32))
    with pytest.raises(CompilerBug, match="status 5"):
        program(np.array([5], np.int32))


def test_launches_are_reported_at_level_two(capsys):
    program = make_add(4, name="vector_add", estimated_seconds=2e-6)
    for _ in range(2):
        program(X, Y)
    with capture() as records:
        program(X, Y, threads=1)
        program(X, Y)
    launches = [record for record in records if record["kind"] == "runtime.launch"]
    assert [record["name"] for record in launches] == ["vector_add"] * 2
    assert all(0 < record["seconds"] < 1 for record in launches)
    assert launches[0]["estimated_seconds"] == 2e-6
    with options(debug=2, color="never"):
        program(X, Y)
    assert "runtime.launch name=vector_add" in capsys.readouterr().err


def test_a_missing_feature_is_named():
    features = ("sse2" if cpu_features.host().architecture == "x86_64" else "neon", "+avx1024", "quantum")
    with pytest.raises(CpuFeatureError, match="lacks: avx1024, quantum"):
        Program(make_manifest(features=features, inputs=(), outputs=()), compile_ir(copy_ir()), support_object())


def test_another_architecture_is_refused():
    manifest = make_manifest(triple="sparc64-sun-solaris", inputs=(), outputs=())
    with pytest.raises(CpuFeatureError, match="sparc64-sun-solaris"):
        Program(manifest, b"", b"")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"inputs": (spec("x", 1, dtype="f7"),)}, "f7"),
        ({"inputs": (spec("x", -1),)}, "shape"),
        ({"aliases": (Alias(0, 5),)}, "alias"),
        ({"inputs": (spec("x", 3),), "outputs": (spec("y", 4),), "aliases": (Alias(0, 0),)}, "differs"),
        (
            {"inputs": (spec("x", 3),), "outputs": (spec("y", 3),) * 2, "aliases": (Alias(0, 0), Alias(1, 0))},
            "two aliases",
        ),
        ({"arena_bytes": -1}, "negative"),
        ({"constants": (Constant(64, 3),)}, "constants"),
        ({"constants": (Constant(0, 3), Constant(4, 3))}, "constants"),
        ({"constants": (Constant(0, 3),)}, "sizes"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_a_compiler_bug(fields, words):
    manifest = make_manifest(**({"inputs": (), "outputs": ()} | fields))
    with pytest.raises(CompilerBug, match=words):
        Program(manifest, compile_ir(copy_ir()), support_object())


@given(st.lists(st.integers(0, 300), max_size=6))
def test_constants_are_placed_without_overlap_at_multiples_of_64(sizes):
    end = 0
    for constant, nbytes in zip(place_constants(sizes), sizes, strict=True):
        assert constant.nbytes == nbytes
        assert constant.offset % 64 == 0
        assert 0 <= constant.offset - end < 64
        end = constant.offset + nbytes


def test_an_object_without_the_entry_is_refused():
    manifest = make_manifest(inputs=(), outputs=())
    program = Program(manifest, compile_ir("define void @other() { ret void }"), support_object())
    with pytest.raises(ProgramFileError, match="tw_main"):
        program()


FRESH = """
import sys
import numpy as np
from tilewright.runtime.program import load

program = load(sys.argv[1])
x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
assert (program(x, y, threads=2) == x + y).all()
print(sorted(name for name in ("xdsl", "llvmlite", "sqlite3", "filelock", "rich") if name in sys.modules))
"""


def test_a_saved_program_runs_in_a_fresh_process_without_the_compiler(add, tmp_path):
    add.save(tmp_path / "add.twp")
    np.testing.assert_array_equal(load(tmp_path / "add.twp")(X, Y), X + Y)
    command = [sys.executable, "-c", FRESH, str(tmp_path / "add.twp")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr


def test_call_overhead(add):
    function = add.function(1)
    out = np.empty(4, np.float32)
    calls = {
        "function(x, y)": lambda: function(X, Y),
        "function(x, y, out)": lambda: function(X, Y, out),
        "program(x, y)": lambda: add(X, Y),
        "numpy x + y": lambda: X + Y,
        "slow way": lambda: add(X[:, None][:, 0], Y, threads=1),
    }
    microseconds = {}
    for name, call in calls.items():
        number = 20_000 if name != "slow way" else 500
        microseconds[name] = min(timeit.repeat(call, number=number, repeat=3)) / number * 1e6
    print({name: round(value, 3) for name, value in microseconds.items()})
    assert microseconds["function(x, y)"] < 5
    assert microseconds["program(x, y)"] < 20


def test_error_classes_are_ours():
    assert issubclass(native._error_class("TW0402"), TilewrightError)
    assert native._error_class("TW0402") is OverlapError


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((4,), (0,), True),
        ((4,), (4,), False),
        ((4,), (-4,), False),
        ((4,), (2,), True),
        ((4, 4), (4, 4), True),
        ((4, 4), (16, 4), False),
        ((4, 4), (4, 16), False),
        ((4, 3), (12, 4), False),
        ((4, 3), (8, 4), True),
        ((1, 4), (0, 4), False),
        ((0, 4), (0, 0), False),
        ((2, 3), (4, 8), False),
        ((2, 3), (12, 8), False),
        ((3, 3), (12, 8), False),
        ((3, 4), (12, 6), True),
    ],
)
def test_an_output_whose_elements_share_memory_is_refused(shape, strides, overlaps):
    memory = np.zeros(64, np.float32)
    array = np.lib.stride_tricks.as_strided(memory[32:], shape, strides)
    assert overlaps_itself(array) == overlaps
    starts = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    assert overlaps == any(abs(a - b) < 4 for n, a in enumerate(starts) for b in starts[:n])
