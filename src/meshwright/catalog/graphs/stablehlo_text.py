"""The text form of MLIR, as far as programs of StableHLO have it: operations, types, attributes.

One operation stands on a line; brackets may go over several. What is read is the form of operations
that ``as_text`` of JAX, torch_xla and ``stablehlo-opt`` print, short or generic
(https://openxla.org/stablehlo/spec, https://mlir.llvm.org/docs/LangRef, November 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.base.budget import Budget

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<gap>[ \t\r]+|//[^\n]*)|(?P<line>\n)|(?P<arrow>->)
    |(?P<value>%[\w$.-]+(?:\#\d+)?)|(?P<word>[@\#!^]?-?[\w$.][\w$.+-]*|[@\#!^])
    |(?P<open>[([{<])|(?P<close>[)\]}>])|(?P<sign>[^\s])""",
    re.VERBOSE,
)
_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}
_MOST_TOKENS = 20_000_000
_MOST_DEPTH = 200
_GOES_ON = frozenset({"cond", "do", "reducer", "else"})
"""Words with which a line goes on with the operation of the line before."""


@dataclass
class Group:
    """Tokens between two brackets."""

    opened: str
    items: list[Item] = field(default_factory=list)


Item = str | Group
"""A token, or a group of them; a text keeps its quotes, a line ends in ``\\n``."""


def groups_of(text: str) -> list[Item]:
    """Return the tokens of a text, those in brackets as groups.

    Raises
    ------
    ValueError
        Where a bracket is not closed, or brackets are nested too deep.
    """
    budget = Budget(steps=_MOST_TOKENS)
    stack = [Group("")]
    for found in _TOKEN.finditer(text):
        kind, token = found.lastgroup, found.group()
        if kind == "gap":
            continue
        budget.spend(steps=1, at="the text")
        if kind == "open":
            if len(stack) > _MOST_DEPTH:
                raise ValueError("its brackets are nested too deep")
            group = Group(token)
            stack[-1].items.append(group)
            stack.append(group)
        elif kind == "close":
            if _CLOSES.get(stack[-1].opened) != token:
                line = text.count("\n", 0, found.start()) + 1
                raise ValueError(f"line {line}: {token!r} closes no bracket")
            stack.pop()
        else:
            stack[-1].items.append(token)
    if len(stack) > 1:
        raise ValueError(f"a bracket {stack[-1].opened!r} is not closed")
    return stack[0].items


def lines_of(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield the items of each operation."""
    line: list[Item] = []
    for place, item in enumerate(items):
        if item != "\n":
            line.append(item)
            continue
        following = next((after for after in items[place + 1 : place + 3] if after != "\n"), "")
        if line and not (isinstance(following, str) and following in _GOES_ON):
            yield line
            line = []
    if line:
        yield line


@dataclass(frozen=True)
class TensorType:
    """A type as it is written: sizes, None where one is open, and the type of elements."""

    shape: tuple[int | None, ...]
    element: str


def types_of(items: Sequence[Item]) -> list[TensorType]:
    """Return the types of tensors among items in order, also those inside of round brackets."""
    found: list[TensorType] = []
    for place, item in enumerate(items):
        before = items[place - 1] if place else ""
        if isinstance(item, Group) and item.opened == "<" and before == "tensor":
            found.append(_type(item))
        elif isinstance(item, Group) and item.opened == "(":
            found += types_of(item.items)
    return found


_SIZES = re.compile(r"(?:\d+x|\?x)*")


def _type(group: Group) -> TensorType:
    written = "".join(item for item in group.items[:8] if isinstance(item, str)).partition(",")[0]
    sizes = _SIZES.match(written)
    end = sizes.end() if sizes else 0
    shape = tuple(None if s == "?" else int(s) for s in written[:end].split("x")[:-1])
    return TensorType(shape, written[end:])


@dataclass(frozen=True)
class Operation:
    """One operation: results, name, operands, attributes, regions and types."""

    results: tuple[str, ...]
    name: str
    operands: tuple[str, ...]
    items: Sequence[Item]
    """All that stands between the name and the types."""
    regions: tuple[Group, ...]
    takes: tuple[TensorType, ...]
    makes: tuple[TensorType, ...]

    def attribute(self, *names: str) -> list[Item]:
        """Return the items of the first attribute with one of these names; none if there is none.

        They end with a comma at the depth of the name.
        """
        return next((found for name in names if (found := _attribute(self.items, name))), [])

    def numbers(self, *names: str) -> list[int]:
        """Return the whole numbers of an attribute."""
        return list(numbers_in(self.attribute(*names)))

    def lists(self, *names: str) -> list[list[str]]:
        """Return the words of each group in square brackets of an attribute."""
        return list(_lists(self.attribute(*names)))

    @property
    def callee(self) -> str:
        """Name of the function that it calls."""
        words = [item for item in _flat(self.items) if item.startswith("@")]
        return words[0].strip('@"') if words else ""


def _flat(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, str):
            yield item
        elif not _is_region(item):
            yield from _flat(item.items)


def _lists(items: Sequence[Item]) -> Iterator[list[str]]:
    for group in items:
        if isinstance(group, Group) and group.opened == "[":
            yield [item for item in group.items if isinstance(item, str) and item not in ",\n"]
        elif isinstance(group, Group) and group.opened == "<":
            yield from _lists(group.items)


def numbers_in(items: Sequence[Item]) -> Iterator[int]:
    """Yield the whole numbers among items, those of a type of tensors left out."""
    for place, item in enumerate(items):
        before = items[place - 1] if place else ""
        if isinstance(item, Group) and before != "tensor":
            yield from numbers_in(item.items)
        elif isinstance(item, str) and re.fullmatch(r"-?\d+", item):
            yield int(item)


def _attribute(items: Sequence[Item], name: str) -> list[Item]:
    for place, item in enumerate(items):
        if isinstance(item, Group):
            if not _is_region(item) and (found := _attribute(item.items, name)):
                return found
        elif item.strip('"') == name and items[place + 1 : place + 2] == ["="]:
            rest = list(items[place + 2 :])
            return rest[: rest.index(",")] if "," in rest else rest
    return []


def _is_region(group: Group) -> bool:
    """Return whether a group holds operations, not attributes."""
    if group.opened != "{":
        return False
    words = [item for item in group.items[:12] if item != "\n"]
    return any(isinstance(item, str) and item[0] in "%^" for item in words[:3]) or any(
        isinstance(item, str) and item.strip('"').endswith("return") for item in words[:1]
    )


def operation(line: Sequence[Item]) -> Operation:
    """Return the operation of a line."""
    items = list(line)
    results: list[str] = []
    if items and str(items[0]).startswith("%"):
        equals = items.index("=")
        results = list(_results(items[:equals]))
        items = items[equals + 1 :]
    name, items = str(items[0]).strip('"'), items[1:]
    regions = [item for item in items if isinstance(item, Group) and _is_region(item)]
    for item in items:
        if isinstance(item, Group) and item.opened == "(":
            inner = [part for part in item.items if isinstance(part, Group) and _is_region(part)]
            regions += inner
    colons = [place for place, item in enumerate(items) if item == ":"]
    end = colons[-1] if colons else len(items)
    takes, makes = _signature(items[end + 1 :])
    return Operation(
        tuple(results), name, tuple(_operands(items[:end])), items[:end], tuple(regions),
        tuple(takes), tuple(makes),
    )  # fmt: skip


def _signature(items: Sequence[Item]) -> tuple[list[TensorType], list[TensorType]]:
    """Return the types that an operation takes and makes; one list stands for both."""
    stop = next(
        (p for p, i in enumerate(items) if isinstance(i, str) and (i in _GOES_ON or i == "loc")),
        len(items),
    )
    items = items[:stop]
    if "->" in items:
        arrow = list(items).index("->")
        return types_of(items[:arrow]), types_of(items[arrow + 1 :])
    found = types_of(items)
    return found, found


def _results(items: Sequence[Item]) -> Iterator[str]:
    """Yield the names of results: ``%0:3`` stands for ``%0#0`` to ``%0#2``."""
    for place, item in enumerate(items):
        if isinstance(item, str) and item.startswith("%"):
            if list(items[place + 1 : place + 2]) == [":"]:
                number = int(str(items[place + 2]))
                yield from (f"{item}#{n}" for n in range(min(number, 10_000)))
            else:
                yield item


def _operands(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Group):
            if item.opened == "(":
                yield from _operands(item.items)
        elif item.startswith("%"):
            yield item
