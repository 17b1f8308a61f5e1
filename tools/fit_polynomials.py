"""Derive the polynomial coefficients of the cpu target's vector mathematics.

    python tools/fit_polynomials.py          print each fit's error and check the stored tables
    python tools/fit_polynomials.py --write  rewrite tilewright/targets/llvm/vector_math_tables.py

Each fit is a minimax polynomial found by Remez exchange in 60 digits, its coefficients then rounded to the type that
evaluates them. The printed error is that of the rounded polynomial, relative to the function that it serves.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import mpmath
from mpmath import mp, mpf
from remez import Fit, Real, error_bits, merged, parts, rounded, rounded_coefficients, series_safe

TABLES = Path(__file__).parent.parent / "tilewright/targets/llvm/vector_math_tables.py"

LN2, PI = mpmath.ln2, mpmath.pi
QUARTER_TURN = PI / 4 * mpf("1.01")
REDUCED_EXP = LN2 / 2 * mpf("1.01")
LOG_LOW, LOG_HIGH = mpmath.sqrt(mpf(1) / 2) - 1, mpmath.sqrt(mpf(2)) - 1


ERFC_CENTRE = mpf("0.140625")


def _scaled_erfc(x: mpf) -> mpf:
    return mpmath.exp(x * x) * mpmath.erfc(x) * (x + 3)


def _logarithm(name: str, scale: mpf, degrees: dict[str, int]) -> Fit:
    return Fit(
        name,
        f"(log1p(f) - f) / f^2 * {mpmath.nstr(scale, 6)}",
        series_safe(lambda f: (mpmath.log1p(f) - f) / f**2 * scale, -scale / 2),
        series_safe(lambda f: f**2 / mpmath.log1p(f) / scale, mpf(0)),
        LOG_LOW,
        LOG_HIGH,
        degrees,
    )


FITS = (
    Fit(
        "EXP",
        "(exp(r) - 1 - r) / r^2",
        series_safe(lambda r: (mpmath.expm1(r) - r) / r**2, mpf(1) / 2),
        series_safe(lambda r: r**2 / mpmath.expm1(r), mpf(0)),
        -REDUCED_EXP,
        REDUCED_EXP,
        {"f32": 4, "f64": 10},
    ),
    Fit(
        "EXPM1",
        "(exp(r) - 1 - r) / r^2",
        series_safe(lambda r: (mpmath.expm1(r) - r) / r**2, mpf(1) / 2),
        series_safe(lambda r: r**2 / mpmath.expm1(r), mpf(0)),
        -REDUCED_EXP,
        REDUCED_EXP,
        {"f32": 5, "mixed": 6, "f64": 10},
    ),
    Fit(
        "SINH",
        "(sinh(r) - r) / r^3 in u = r^2",
        series_safe(lambda u: (mpmath.sinh(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u, mpf(1) / 6),
        lambda u: u,
        mpf(0),
        REDUCED_EXP**2,
        {"f32": 2, "f64": 5},
    ),
    Fit(
        "COSH",
        "(cosh(r) - 1) / r^2 in u = r^2",
        series_safe(lambda u: (mpmath.cosh(mpmath.sqrt(u)) - 1) / u, mpf(1) / 2),
        lambda u: u,
        mpf(0),
        REDUCED_EXP**2,
        {"f32": 2, "f64": 5},
    ),
    Fit(
        "EXP2",
        "(exp2(r) - 1) / r",
        series_safe(lambda r: mpmath.expm1(r * LN2) / r, LN2),
        lambda r: r / mpf(2) ** r,
        mpf("-0.501"),
        mpf("0.501"),
        {"f32": 5, "f64": 12},
    ),
    _logarithm("LOG", mpf(1), {"f32": 9, "mixed": 13, "f64": 21}),
    _logarithm("LOG2", 1 / LN2, {"f32": 9, "f64": 21}),
    _logarithm("LOG10", 1 / mpmath.ln10, {"f32": 9, "f64": 21}),
    Fit(
        "SIN",
        "(sin(r) - r) / r^3 in u = r^2, |r| <= pi / 4",
        lambda u: (mpmath.sin(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u,
        lambda u: u ** mpf("1.5") / mpmath.sin(mpmath.sqrt(u)),
        mpf("0.005"),
        QUARTER_TURN**2,
        {"f32": 2, "f64": 5},
        weighted=True,
    ),
    Fit(
        "COS",
        "(cos(r) - 1 + r^2 / 2) / r^4 in u = r^2, |r| <= pi / 4",
        lambda u: (mpmath.cos(mpmath.sqrt(u)) - 1 + u / 2) / u**2,
        lambda u: u**2 / mpmath.cos(mpmath.sqrt(u)),
        mpf("0.005"),
        QUARTER_TURN**2,
        {"f32": 2, "f64": 5},
        weighted=True,
    ),
    Fit(
        "TAN",
        "(tan(r) - r) / r^3 in u = r^2, |r| <= pi / 4",
        lambda u: (mpmath.tan(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u,
        lambda u: u ** mpf("1.5") / mpmath.tan(mpmath.sqrt(u)),
        mpf("0.005"),
        QUARTER_TURN**2,
        {"f32": 6, "f64": 14},
        weighted=True,
    ),
    Fit(
        "ASIN",
        "(asin(s) - s) / s^3 in u = s^2, s <= 1/2",
        lambda u: (mpmath.asin(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u,
        lambda u: u ** mpf("1.5") / mpmath.asin(mpmath.sqrt(u)),
        mpf("0.002"),
        mpf(1) / 4,
        {"f32": 4, "f64": 12},
        weighted=True,
    ),
    Fit(
        "ATAN",
        "(atan(t) - t) / t^3 in u = t^2, t <= 1",
        lambda u: (mpmath.atan(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u,
        lambda u: u ** mpf("1.5") / mpmath.atan(mpmath.sqrt(u)),
        mpf("0.005"),
        mpf(1),
        {"f32": 8, "f64": 20},
        weighted=True,
    ),
    Fit(
        "ERF",
        "erf(x) / x - 1 in u = x^2, x <= 1",
        series_safe(lambda u: mpmath.erf(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1, 2 / mpmath.sqrt(PI) - 1),
        series_safe(lambda u: mpmath.sqrt(u) / mpmath.erf(mpmath.sqrt(u)), mpmath.sqrt(PI) / 2),
        mpf(0),
        mpf(1),
        {"f32": 7, "mixed": 8, "f64": 13},
    ),
    Fit(
        "ERF_TAIL",
        "erf(y + 2.5)",
        lambda y: mpmath.erf(y + mpf("2.5")),
        lambda y: 1 / mpmath.erf(y + mpf("2.5")),
        mpf("-1.5"),
        mpf("1.5"),
        {"f32": 15},
    ),
    Fit(
        "ERFC_LOG2",
        "log2(erfc(y + 1)), y <= 3, for erf by a base-2 exponential",
        lambda y: mpmath.log(mpmath.erfc(y + 1), 2),
        lambda y: LN2 * mpmath.erfc(y + 1) / mpmath.erf(y + 1),
        mpf(0),
        mpf(3),
        {"f32": 6},
        weighted=True,
    ),
    Fit(
        "TANH_NEAR",
        "(tanh(x) / x - 1) / x^2 in u = x^2, x <= 0.55",
        series_safe(lambda u: (mpmath.tanh(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1) / u, -1 / mpf(3)),
        series_safe(lambda u: u ** mpf("1.5") / mpmath.tanh(mpmath.sqrt(u)), mpf(0)),
        mpf(0),
        mpf("0.3025"),
        {"f32": 4},
    ),
    Fit(
        "ERFC_TAIL",
        "exp(x^2) erfc(x) (x + 3) in y = 1 / (x + 3) - 0.140625",
        lambda y: _scaled_erfc(1 / (y + ERFC_CENTRE) - 3),
        lambda y: 1 / _scaled_erfc(1 / (y + ERFC_CENTRE) - 3),
        1 / mpf("30.4") - ERFC_CENTRE,
        1 / mpf("3.8") - ERFC_CENTRE,
        {"mixed": 11, "f64": 22},
        two_part={"f64": 2},
    ),
    Fit(
        "ATANH",
        "(atanh(s) / s - 1 - s^2 / 3) / s^4 in u = s^2, s <= 0.172",
        lambda u: (mpmath.atanh(mpmath.sqrt(u)) / mpmath.sqrt(u) - 1 - u / 3) / u**2,
        lambda u: u ** mpf("2.5") / mpmath.atanh(mpmath.sqrt(u)),
        mpf("0.0001"),
        mpf("0.0296"),
        {"f64": 6},
        weighted=True,
    ),
    Fit(
        "NEAR_LOG2",
        "(log2(1 + r) - (r - r^2 / 2) / log(2)) / r^3, |r| <= 1 / 32",
        series_safe(lambda r: (mpmath.log1p(r) - r + r**2 / 2) / r**3 / LN2, 1 / LN2 / 3),
        series_safe(lambda r: r**3 * LN2 / mpmath.log1p(r), mpf(0)),
        -mpf(1) / 32,
        mpf(1) / 32,
        {"f32": 3},
    ),
    Fit(
        "NEAR_EXP2",
        "(2^r - 1) / r, |r| <= 1 / 64",
        series_safe(lambda r: mpmath.expm1(r * LN2) / r, LN2),
        lambda r: r,
        -mpf("1.01") / 64,
        mpf("1.01") / 64,
        {"f32": 2},
    ),
)


# As many f32 as two registers of AVX-512 hold, and as one of AVX2 holds; as many f64 as two of AVX-512 hold.
INTERVALS, FEW_INTERVALS, DOUBLES = 32, 8, 16


@dataclass(frozen=True)
class Pieces:
    """An odd `function` on `intervals` of one width, from 0 on: polynomials of `degree` in the distance from the
    points k * `spacing`, the first of `function` less that distance. `spacing` has few bits, so that these points are
    exact; of those that have, it is one where the function's first values round well. At the last of the points the
    function rounds to 1."""

    name: str
    formula: str
    function: Real
    slope: mpf
    intervals: int
    spacing: mpf
    degree: int
    element: str = "f32"

    def fit(self, piece: int) -> Fit:
        reach, centre = self.spacing / 2 * mpf("1.001"), piece * self.spacing
        name, formula, degrees = self.name, self.formula, {self.element: self.degree - (piece == 0)}
        last = piece == self.intervals - 1
        if piece == 0:
            rest = series_safe(lambda t: self.function(t) / t - 1, self.slope - 1)
            return Fit(name, formula, rest, lambda t: 1 / (rest(t) + 1), mpf(0), reach, degrees)

        def moved(t: mpf) -> mpf:
            return self.function(centre + t)

        return Fit(name, formula, moved, lambda t: 1 / moved(t), -reach, mpf(0) if last else reach, degrees)

    def polynomials(self) -> list[list[float]]:
        """The coefficients of each piece, constant first."""
        found: list[list[float]] = []
        for piece in range(self.intervals):
            fit = self.fit(piece)
            values = rounded_coefficients(fit, fit.degrees[self.element], self.element)
            bits = error_bits(fit, [mpf(value) for value in values])
            print(f"{self.name:12} of {self.intervals} piece {piece:2} relative error 2^{bits:.1f}", flush=True)
            found.append(values if piece else [0.0, *values])
        return found


PIECES = (
    Pieces("ERF", "erf, to 3.97", mpmath.erf, 2 / mpmath.sqrt(PI), INTERVALS, mpf(1051) / 8192, 4),
    Pieces("ERF", "erf, to 4.03", mpmath.erf, 2 / mpmath.sqrt(PI), FEW_INTERVALS, mpf(589) / 1024, 8),
    Pieces("ERF", "erf, to 6.03", mpmath.erf, 2 / mpmath.sqrt(PI), DOUBLES, mpf(6589) / 16384, 13, "f64"),
    Pieces("TANH", "tanh, to 9.17", mpmath.tanh, mpf(1), INTERVALS, mpf(303) / 1024, 6),
)


@dataclass(frozen=True)
class Octaves:
    """exp(a^2) erfc(a) on `intervals` in four octaves of a + `offset`, each divided into intervals of one width: in
    polynomials of `degree` in the distance from the middle of an interval, the first coefficients `in_two_parts`.
    Intervals are numbered by the last bits of the exponent and the first ones of the significand of a + `offset`."""

    element: str
    intervals: int
    offset: int
    degree: int
    in_two_parts: int = 1

    def polynomials(self) -> list[list[float]]:
        """The coefficients of each interval, in the order of their numbers, the second parts before the others."""
        found: dict[int, list[float]] = {}
        each_octave = self.intervals // 4
        for octave in range(self.offset.bit_length() - 1, self.offset.bit_length() + 3):
            width = mpf(2) ** octave / each_octave
            for part in range(each_octave):
                fit = self._fit(mpf(2) ** octave + (part + mpf(1) / 2) * width - self.offset, width / 2)
                values = rounded_coefficients(fit, self.degree, self.element)
                bits = error_bits(fit, merged(values, self.in_two_parts))
                where = f"of {self.intervals} octave {octave} part {part}"
                print(f"{'ERFCX':12} {where} relative error 2^{bits:.1f}", flush=True)
                # The biased exponent is one less than a multiple of 4 in the octave from 1 on.
                second = 2 * self.in_two_parts
                ordered = [*values[1:second:2], *values[0:second:2], *values[second:]]
                found[(octave - 1) % 4 * each_octave + part] = ordered
        return [found[number] for number in range(self.intervals)]

    def _fit(self, centre: mpf, half: mpf) -> Fit:
        def moved(t: mpf) -> mpf:
            return mpmath.exp((centre + t) ** 2) * mpmath.erfc(centre + t)

        reach = half * mpf("1.0001")
        degrees, two_part = {self.element: self.degree}, {self.element: self.in_two_parts}
        return Fit("ERFCX", "", moved, lambda t: 1 / moved(t), -reach, reach, degrees, two_part=two_part)


OCTAVES = (
    Octaves("f32", INTERVALS, 1, 5),
    Octaves("f32", FEW_INTERVALS, 1, 9, in_two_parts=2),
    Octaves("f64", DOUBLES, 2, 14),
)


def looked_up_logarithms() -> dict[str, list[float]]:
    """For significands m from 1 + k / 32 on: c near 1 / m, of so few bits that m c - 1 is an f32, and -log2(c) in two
    parts, the first of so few bits that an exponent plus it is an f32. Around 1 and 2, c is a power of 2."""
    near: list[mpf] = []
    for k in range(INTERVALS):
        middle = 1 + (k + mpf(1) / 2) / INTERVALS
        near.append(mpf(1) if k == 0 else mpf(1) / 2 if k == INTERVALS - 1 else mpmath.nint(64 / middle) / 64)
    logarithms = [-mpmath.log(c, 2) for c in near]
    high = [mpmath.nint(value * 2**16) / 2**16 for value in logarithms]
    low = [value - first for value, first in zip(logarithms, high, strict=True)]
    return {name: rounded(v, "f32") for name, v in (("NEAR", near), ("LOG2_HIGH", high), ("LOG2_LOW", low))}


def looked_up_powers() -> dict[str, list[float]]:
    """2^(k / 32) in two parts."""
    pairs = [parts(mpf(2) ** (mpf(k) / INTERVALS), 2, "f32") for k in range(INTERVALS)]
    return {"EXP2_HIGH": [pair[0] for pair in pairs], "EXP2_LOW": [pair[1] for pair in pairs]}


# Constants as the sum of that many floats, each the rest rounded to the type.
CONSTANTS = (
    ("LOG_2", LN2, 2),
    ("LOG2_E", 1 / LN2, 2),
    ("LOG10_E", 1 / mpmath.ln10, 2),
    ("LOG10_2", mpmath.log10(2), 2),
    ("THIRD", 1 / mpf(3), 2),
    ("HALF_PI", PI / 2, 3),
    ("INVERSE_HALF_PI", 2 / PI, 1),
)


def constant_lines() -> list[str]:
    lines = ["CONSTANTS: dict[str, dict[str, tuple[float, ...]]] = {"]
    for name, value, count in CONSTANTS:
        lines.append(f'    "{name}": {{')
        for element in ("f32", "f64"):
            lines.append(f'        "{element}": {tuple(parts(+value, count, element))},')
        lines.append("    },")
    return [*lines, "}"]


# 1 / pi in binary after 64 zero bits: enough for the largest double's exponent and 192 bits from there.
INVERSE_PI_WORDS = 20


def inverse_pi_lines() -> list[str]:
    with mp.workprec(64 * INVERSE_PI_WORDS + 64):
        bits = int(mpmath.floor(mpmath.ldexp(1 / +PI, 64 * (INVERSE_PI_WORDS - 1))))
    words = [bits >> (64 * (INVERSE_PI_WORDS - 1 - k)) & (1 << 64) - 1 for k in range(INVERSE_PI_WORDS)]
    lines = ["# 1 / pi after 64 zero bits, most significant word first."]
    return [*lines, "INVERSE_PI_BITS: tuple[int, ...] = (", *(f"    0x{word:016X}," for word in words), ")"]


def table_text() -> str:
    lines = [
        '"""Constants in parts and polynomial coefficients, constant term first.',
        "",
        "Written by tools/fit_polynomials.py; do not edit.",
        '"""',
        "",
        *constant_lines(),
        "",
        *inverse_pi_lines(),
        "",
        "TABLES: dict[str, dict[str, tuple[float, ...]]] = {",
    ]
    for fit in FITS:
        lines.append(f"    # {fit.formula}")
        lines.append(f'    "{fit.name}": {{')
        for element, degree in fit.degrees.items():
            values = rounded_coefficients(fit, degree, element)
            bits = error_bits(fit, merged(values, fit.two_part.get(element, 0)))
            print(f"{fit.name:12} {element} degree {degree:2} relative error 2^{bits:.1f}", flush=True)
            lines.append(f'        "{element}": (')
            lines += [f"            {value!r}," for value in values]
            lines.append("        ),")
        lines.append("    },")
    return "\n".join([*lines, "}", "", *piece_lines(), "", *octave_lines(), "", *lookup_lines(), ""])


def lookup_lines() -> list[str]:
    lines = [
        "# Values for 32 intervals, which are looked up by the number of the interval.",
        "LOOKUPS: dict[str, tuple[float, ...]] = {",
    ]
    for name, values in (looked_up_logarithms() | looked_up_powers()).items():
        lines += [f'    "{name}": (', *(f"        {value!r}," for value in values), "    ),"]
    return [*lines, "}"]


def piece_lines() -> list[str]:
    lines = [
        "# By the number of intervals: the width of one, then coefficients, constant terms first, each of all.",
        "PIECES: dict[str, dict[int, tuple[float, tuple[tuple[float, ...], ...]]]] = {",
    ]
    for name in dict.fromkeys(pieces.name for pieces in PIECES):
        lines.append(f'    "{name}": {{')
        for pieces in (each for each in PIECES if each.name == name):
            lines += [f"        # {pieces.formula}", f"        {pieces.intervals}: ("]
            lines += [f"            {float(pieces.spacing)!r},", "            ("]
            for coefficients in zip(*pieces.polynomials(), strict=True):
                lines += [
                    "                (",
                    *(f"                    {value!r}," for value in coefficients),
                    "                ),",
                ]
            lines += ["            ),", "        ),"]
        lines.append("    },")
    return [*lines, "}"]


def octave_lines() -> list[str]:
    lines = [
        "# exp(a^2) erfc(a), by the number of intervals: what is added to a, how many coefficients are in two parts,",
        "# their second parts and all coefficients, constant terms first, each of all intervals.",
        "OCTAVES: dict[int, tuple[float, int, tuple[tuple[float, ...], ...]]] = {",
    ]
    for octaves in OCTAVES:
        lines += [f"    {octaves.intervals}: (", f"        {float(octaves.offset)!r},"]
        lines += [f"        {octaves.in_two_parts},", "        ("]
        for coefficients in zip(*octaves.polynomials(), strict=True):
            lines += ["            (", *(f"                {value!r}," for value in coefficients), "            ),"]
        lines += ["        ),", "    ),"]
    return [*lines, "}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the tables")
    arguments = parser.parse_args()
    text = table_text()
    if arguments.write:
        TABLES.write_text(text)
    elif TABLES.read_text() != text:
        raise SystemExit(f"{TABLES.name} differs from what this script derives: run it with --write")


if __name__ == "__main__":
    main()
