"""The one parser and the one printer of quantities: "80 GiB", "3.35 TB/s", "989 TFLOP/s".

Inside the package every quantity is an SI float with its unit in the name; text files carry the
unit in the value. k M G T P E are powers of 1000, Ki Mi Gi Ti powers of 1024; b is a bit, B a byte.
Tokens are counted as people write them: 300B is 300 billion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from meshwright.base.errors import UsageError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_LARGE = _DECIMAL | _BINARY
_QUANTITY = re.compile(r"^\s*([-+]?[0-9][0-9_]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*$")
_COUNT = re.compile(r"([0-9][0-9_]{0,15}(?:\.[0-9]{1,6})?) ?([km]i?|)", re.IGNORECASE | re.ASCII)

_WHOLE = re.compile(r"-?[0-9]{1,18}")

# dimension -> (unit symbol -> factor to SI, prefixes allowed, an example for messages)
_UNITS: dict[str, tuple[dict[str, float], dict[str, float], str]] = {
    "bytes": ({"B": 1.0, "b": 0.125}, _LARGE, "80 GiB"),
    "bytes_per_s": ({"B/s": 1.0, "b/s": 0.125}, _LARGE, "3.35 TB/s"),
    "flops": ({"FLOP": 1.0}, _DECIMAL, "2 GFLOP"),
    "flops_per_s": ({"FLOP/s": 1.0, "OP/s": 1.0}, _DECIMAL, "989 TFLOP/s"),
    "s": ({"s": 1.0}, _SMALL | {"": 1.0}, "200 ns"),
    "duration": ({"d": 86400.0, "days": 86400.0, "h": 3600.0, "weeks": 604800.0}, {"": 1.0}, "30d"),
    "w": ({"W": 1.0}, _DECIMAL | _SMALL, "700 W"),
    "j_per_flop": ({"J/FLOP": 1.0}, _SMALL | {"": 1.0}, "0.5 pJ/FLOP"),
    "j_per_byte": ({"J/B": 1.0, "J/b": 8.0}, _SMALL | {"": 1.0}, "5 pJ/b"),
    "mm2": ({"mm2": 1.0}, {"": 1.0}, "814 mm2"),
    "m": ({"m": 1.0}, _SMALL | {"": 1.0}, "33.25 mm"),
    "k_per_w": ({"K/W": 1.0}, _SMALL | {"": 1.0}, "0.05 K/W"),
    "celsius": ({"C": 1.0}, {"": 1.0}, "25 C"),
    "hz": ({"Hz": 1.0}, _DECIMAL, "1.8 GHz"),
    "usd": ({"USD": 1.0}, _DECIMAL, "30000 USD"),
    "usd_per_hour": ({"USD/hour": 1.0, "USD/h": 1.0}, {"": 1.0}, "2.5 USD/h"),
    "usd_per_kwh": ({"USD/kWh": 1.0}, {"": 1.0}, "0.1 USD/kWh"),
    "tokens": ({"": 1.0, "tokens": 1.0}, _DECIMAL | {"B": 1e9}, "15T"),
    "tokens_per_s": ({"tokens/s": 1.0, "tok/s": 1.0}, _DECIMAL, "412k tokens/s"),
}
DIMENSIONS = tuple(_UNITS)


MOST_QUANTITY = 1e30
"""No quantity is larger in SI units, and none above 0 smaller than one over it."""


def out_of_range(value: float) -> str:
    """Return the reason why a number is no quantity: infinite, too large or too small."""
    if 1.0 / MOST_QUANTITY <= abs(value) <= MOST_QUANTITY or value == 0:
        return ""
    return f"is beyond {MOST_QUANTITY:g}" if abs(value) > 1 else f"is below {1 / MOST_QUANTITY:g}"


def time_told(what: str, seconds: float, parts_s: Mapping[str, float]) -> float:
    """Return the time of an answer, which some machine could take.

    Raises
    ------
    UsageError
        Where it is 0, no number, or no quantity at all; with the parts that make it so.
    """
    if seconds > 0.0 and not out_of_range(seconds):
        return seconds
    culprits = [name for name, part in parts_s.items() if part and out_of_range(part)]
    parts = ", ".join(f"{name} is {parts_s[name]:.3g}" for name in culprits or parts_s)
    raise UsageError(
        f"{what} would take {seconds:.3g} s, as no machine does: {parts}. Rates, latencies, sizes "
        "or constants of the question are not those of a machine"
    )


def parse_quantity(text: str, dimension: str) -> float:
    """Return the SI value of a written quantity.

    Parameters
    ----------
    text
        A number and its unit, such as ``"3.35 TB/s"``.
    dimension
        A key of the unit table: ``bytes``, ``bytes_per_s``, ``flops_per_s``, ``s``, ``w``, ...

    Raises
    ------
    ValueError
        When the text is no number with a unit of that dimension; the message names the fault.
    """
    _, _, example = _UNITS[dimension]
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; expected something like {example!r}")
    number, unit = match.groups()
    factors = _factors(unit)
    if dimension not in factors and not unit:
        raise ValueError(f"{text!r} has no unit; expected something like {example!r}")
    if dimension not in factors:
        means = f" (its unit is one of {next(iter(factors))})" if factors else ""
        raise ValueError(f"{text!r} is no {dimension}{means}; expected something like {example!r}")
    value = float(number.replace("_", "")) * factors[dimension]
    if why := out_of_range(value):
        raise ValueError(f"{text[:40]!r} {why}, in SI units")
    return value


def with_unit(value: float, dimension: str) -> str:
    """Return an SI value as :func:`parse_quantity` reads it: exact, with its unit."""
    return f"{value!r} {next(iter(_UNITS[dimension][0]))}"


def read_quantity(text: str) -> tuple[float, str] | None:
    """Return the SI value and the dimension of a written quantity; None where it is none.

    Of several dimensions with this unit, the first in the table.
    """
    match = _QUANTITY.match(text)
    if match is None:
        return None
    number, unit = match.groups()
    values = (
        (float(number.replace("_", "")) * factor, dimension)
        for dimension, factor in _factors(unit).items()
    )
    return next((found for found in values if not out_of_range(found[0])), None)


def whole_number(text: str) -> int | None:
    """Return a whole number of at most eighteen digits, or None for any other text."""
    return int(text) if _WHOLE.fullmatch(text) else None


def parse_count(text: str, *, kilo: int = 1000) -> int | None:
    """Return a written count, or None for any other text: ``8192``, ``1_000``, ``128k``, ``1.5M``.

    Parameters
    ----------
    kilo
        Base of k and M: 1000 as people count, 1024 where lengths of sequences are meant
        (128k is 131072). Ki and Mi are powers of 1024 always.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix = match.groups()
    powers = {"": 1, "K": kilo, "M": kilo**2, "KI": 2**10, "MI": 2**20}
    count = Fraction(number.replace("_", "")) * powers[prefix.upper()]
    return int(count) if count.denominator == 1 else None


@lru_cache(maxsize=1024)
def _factors(unit: str) -> Mapping[str, float]:
    """Return the factor of a written unit to SI in each dimension that has it, in their order."""
    found: dict[str, float] = {}
    for dimension, (symbols, prefixes, _) in _UNITS.items():
        for symbol, base in symbols.items():
            prefix = unit.removesuffix(symbol).strip()
            if unit.endswith(symbol) and prefix in prefixes:
                found.setdefault(dimension, base * prefixes[prefix])
    return found


_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LONG = re.compile(r"(\S{100})\S{21,}(\S{40})")
_PADDED = re.compile(" {161,}")


def printable(text: str, *, is_whole: bool = False) -> str:
    """Return a text for a terminal: control characters are escaped, overlong words are cut.

    Escaped are the control letters C0 (but tabs and ends of lines) and C1, and those that turn the
    direction of writing. Of a word of more than 160 letters, such as a name that a file made up,
    the middle is left out; so are blanks that fill a column as wide as that.

    Parameters
    ----------
    is_whole
        It is a file or a command that must stay complete.
    """
    if not is_whole:
        text = _PADDED.sub("  ", _LONG.sub(r"\1...\2", text))
    return _RAW.sub(lambda found: ascii(found.group())[1:-1], text)


def format_si(value: float, unit: str, *, digits: int = 3) -> str:
    """Return a value with a decimal prefix: ``format_si(3.35e12, "B/s") == "3.35 TB/s"``."""
    if value == 0:
        return f"0 {unit}"
    for prefix in "EPTGMk":
        if abs(value) >= _DECIMAL[prefix]:
            return f"{value / _DECIMAL[prefix]:.{digits}g} {prefix}{unit}"
    return f"{value:.{digits}g} {unit}"


def format_bytes(value: float) -> str:
    """Return bytes in binary units, as memory is sold and reported: ``"17.5 GiB"``."""
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        if abs(value) >= _BINARY[prefix]:
            scaled = value / _BINARY[prefix]
            return f"{scaled:.1f} {prefix}B" if scaled < 1000 else f"{scaled:.0f} {prefix}B"
    return f"{value:.0f} B"


def format_number(value: float, *, digits: int = 3) -> str:
    """Return a number rounded to so many digits or to a whole one: ``"0.312"``, ``"2,390"``."""
    is_large = value >= 10.0**digits - 0.5
    return f"{value:,.0f}" if is_large else f"{value:.{digits}g}"


def format_days(value: float) -> str:
    """Return a long time in days, below two in hours: ``"35.5 days"``, ``"30 h"``."""
    number, unit = (value / 86400.0, "days") if value >= 172_800.0 else (value / 3600.0, "h")
    return f"{number:,.1f}".removesuffix(".0") + f" {unit}"


def format_seconds(value: float) -> str:
    """Return a duration in the unit a reader expects: ``"2.31 s"``, ``"410 ms"``, ``"12.5 us"``.

    A difference keeps its sign; below half a picosecond it is the rest of a rounding, and none.
    """
    sign, size = "-" if value < 0.0 else "", abs(value)
    if size < 0.5e-12:
        return "0 s"
    if size >= 100:
        return f"{sign}{size:.0f} s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= 0.9995 * factor:  # rounded to three digits
            return f"{sign}{size / factor:.3g} {unit}"
    return f"{sign}{size / 1e-9:.3g} ns"
