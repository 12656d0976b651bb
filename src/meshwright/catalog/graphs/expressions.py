"""Sizes that programs leave open: whole numbers, symbols, and arithmetic of both.

A text is taken apart by the grammar of Python and nothing of it is ever run: numbers, names, the
signs ``+ - * / // % **`` and the functions of :data:`FUNCTIONS`. All else is refused. PyTorch
writes sizes in this form: ``Add(Mul(Integer(2), Symbol('s77', positive=True)), Integer(1))``
(``_print_sympy`` of ``torch/_export/serde/serialize.py``, PyTorch 2.13), ``2*s77 + 1`` before.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, floor, prod, trunc

MOST_LETTERS = 8192
"""Most letters of one expression."""
_MOST_BITS = 64
"""Most bits of every intermediate number."""
_MOST_DEPTH = 64


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or bits * abs(exponent) > _MOST_BITS:
        raise ValueError(f"{base} to the power of {exponent} is not a size")
    return base ** int(exponent)


FUNCTIONS: Mapping[str, Callable[..., Fraction | int]] = {
    "Add": lambda *parts: sum(parts),
    "Mul": lambda *parts: prod(parts),
    "Pow": _power,
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a % b),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), lambda a, b: a // b),
    "CeilDiv": lambda a, b: -(-a // b),
    "ModularIndexing": lambda a, b, c: a // b % c,
    "Min": min,
    "Max": max,
    **dict.fromkeys(("Rational", "IntTrueDiv", "FloatTrueDiv"), lambda a, b: a / b),
    **dict.fromkeys(("ToFloat", "Identity"), lambda a: a),
    **dict.fromkeys(("FloorToInt", "floor"), floor),
    **dict.fromkeys(("CeilToInt", "ceiling"), ceil),
    "TruncToInt": trunc,
}
_SIGNS: Mapping[type[ast.operator], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.Mod: "Mod", ast.FloorDiv: "FloorDiv",
    ast.Div: "Rational",
}  # fmt: skip
_SHOWN = {"Add": " + ", "Mul": "*", "FloorDiv": "//", "Mod": "%", "PythonMod": "%"}


@dataclass(frozen=True)
class Expression:
    """A number, a symbol, or a function of other expressions."""

    head: int | str
    """The number, the name of the symbol, or the name of the function."""
    parts: tuple[Expression, ...] = ()

    def __str__(self) -> str:
        if not self.parts:
            return str(self.head)
        inside = [f"({part})" if part.head == "Add" else str(part) for part in self.parts]
        if self.head in _SHOWN:
            return _SHOWN[str(self.head)].join(inside)
        return f"{self.head}({', '.join(map(str, self.parts))})"

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols in it."""
        if isinstance(self.head, str) and not self.parts:
            return frozenset({self.head})
        return frozenset().union(*(part.symbols for part in self.parts))

    def value(self, bound: Mapping[str, int]) -> int | None:
        """Return the whole number that the expression equals; None while a symbol is open.

        Raises
        ------
        ValueError
            Where it is no whole number, or one of more than 64 bits.
        """
        if not self.symbols <= bound.keys():
            return None
        found = self._value(bound)
        if found.denominator != 1:
            raise ValueError(f"{self} is {found}, not a whole number")
        return int(found)

    def _value(self, bound: Mapping[str, int]) -> Fraction:
        if not self.parts:
            return Fraction(self.head if isinstance(self.head, int) else bound[self.head])
        parts = [part._value(bound) for part in self.parts]
        try:
            found = Fraction(FUNCTIONS[str(self.head)](*parts))
        except (ZeroDivisionError, TypeError) as error:
            raise ValueError(f"{self} has no value") from error
        if max(found.numerator.bit_length(), found.denominator.bit_length()) > _MOST_BITS:
            raise ValueError(f"{self} is beyond {_MOST_BITS} bits")
        return found

    def solved(self, symbol: str, size: int) -> int | None:
        """Return the whole number above 0 at which a function of one symbol has a size.

        Such as 2 s + 1 is: a line, which two points state. None where there is no such number.
        """
        if self.symbols != {symbol}:
            return None
        low, high = (self._value({symbol: at}) for at in (1, 2))
        if high == low:
            return None
        found = 1 + (size - low) / (high - low)
        fits = found.denominator == 1 and found > 0 and self._value({symbol: int(found)}) == size
        return int(found) if fits else None


Size = int | Expression


@lru_cache(maxsize=4096)
def read_expression(text: str) -> Expression:
    """Return the expression that a text states.

    Raises
    ------
    ValueError
        Where it is anything but arithmetic of whole numbers and symbols.
    """
    try:
        if len(text) <= MOST_LETTERS:
            return _read(ast.parse(text.strip(), mode="eval").body, _MOST_DEPTH)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    shown = text if len(text) <= 60 else text[:57] + "..."
    raise ValueError(f"{shown!r} is not arithmetic of whole numbers and symbols")


def _read(node: ast.expr, depth: int) -> Expression:
    """Return a part of a text as an expression; ``depth`` levels may be below it."""
    if not depth:
        raise ValueError
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return Expression(number)
        case ast.Name(id=name):
            return Expression(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _read(operand, depth - 1)
            is_number = isinstance(inner.head, int)
            return Expression(-int(inner.head)) if is_number else _negative(inner)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            parts = _read(left, depth - 1), _negative(_read(right, depth - 1))
            return Expression("Add", parts)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return Expression(_SIGNS[type(sign)], (_read(left, depth - 1), _read(right, depth - 1)))
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return Expression(name)  # what else is said of it (positive=True) is not read
        case ast.Call(func=ast.Name(id="Integer"), args=[number], keywords=[]):
            return _read(number, depth - 1)
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as parts, keywords=[]) if (
            name in FUNCTIONS
        ):
            return Expression(name, tuple(_read(part, depth - 1) for part in parts))
    raise ValueError


def _negative(part: Expression) -> Expression:
    return Expression("Mul", (Expression(-1), part))
