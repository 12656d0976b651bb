"""Sizes that programs leave open: arithmetic is read, and nothing else."""

import pytest

from meshwright.catalog.graphs.expressions import Expression, read_expression

SYMBOL = "Symbol('s77', positive=True, integer=True)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (SYMBOL, 10),
        ("Integer(-3)", -3),
        (f"Add(Mul(Integer(2), {SYMBOL}), Integer(1))", 21),
        ("2*s77 + 1", 21),
        ("s77 - 3", 7),
        ("-s77 + 12", 2),
        (f"FloorDiv({SYMBOL}, Integer(4))", 2),
        ("(s77 + 3) // 4", 3),
        (f"Mod({SYMBOL}, Integer(4))", 2),
        (f"CeilToInt(IntTrueDiv({SYMBOL}, Integer(4)))", 3),
        (f"Pow({SYMBOL}, Integer(2))", 100),
        (f"Mul(Rational(1, 2), {SYMBOL})", 5),
        (f"Max(Integer(1), Min({SYMBOL}, Integer(7)))", 7),
        (f"ModularIndexing({SYMBOL}, Integer(2), Integer(3))", 2),
    ],
)
def test_arithmetic_has_the_value_that_follows_by_hand(text, value) -> None:
    assert read_expression(text).value({"s77": 10}) == value


def test_open_symbols_have_no_value() -> None:
    assert read_expression("2*s0 + u1").value({"s0": 4}) is None
    assert read_expression("2*s0 + u1").symbols == {"s0", "u1"}
    assert str(read_expression(f"Mul(Integer(2), Add({SYMBOL}, Integer(1)))")) == "2*(s77 + 1)"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        f"__import__('os').system('true') or {SYMBOL}",
        "Symbol(open('x'))",
        "Integer(s0.__class__)",
        "[s0 for s0 in (1,)]",
        "(lambda: 3)()",
        "Add(*(1, 2))",
        "Add(s0, x=1)",
        "Add()",
        "eval(s0)",
        "'text'",
        "1.5",
        "True",
        "s0 if s0 else 1",
        "f'{s0}'",
        "",
        "9" * 5000,
        "-" * 8000 + "1",
        "(" * 500 + "s0" + ")" * 500,
        "s0+" * 4000 + "s0",
        "Add(s0, " * 80 + "1" + ")" * 80,
    ],
)
def test_all_else_is_refused(text) -> None:
    with pytest.raises(ValueError, match="is not arithmetic of whole numbers and symbols"):
        read_expression(text)


@pytest.mark.parametrize(
    "text", ["Pow(s0, Integer(99999))", "Pow(Pow(s0, 20), 20)", "s0 // 0", "Mod(s0, 0)", "s0 / 3"]
)
def test_what_is_no_size_is_refused_when_it_is_asked_for(text) -> None:
    with pytest.raises(ValueError, match=r"beyond|not a size|no value|not a whole number"):
        read_expression(text).value({"s0": 10})


def test_a_line_is_solved_for_its_symbol() -> None:
    line = read_expression("3*s0 + 2")
    assert line.solved("s0", 20) == 6
    assert line.solved("s0", 21) is None
    assert line.solved("s1", 20) is None
    assert read_expression("s0 // 2").solved("s0", 4) is None
    assert Expression(7).solved("s0", 7) is None
