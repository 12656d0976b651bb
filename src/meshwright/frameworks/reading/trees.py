"""YAML, JSON and TOML files as trees; nothing in them is run."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Hashable, Mapping

import yaml

from meshwright.base.budget import Budget
from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.files import json_content, shown


def trees_of(text: str, suffix: str, origin: str) -> list[dict[str, object]]:
    """Return the trees of a file: several of YAML documents, else one.

    Raises
    ------
    SpecError
        The text is no such file, larger or deeper than is read, or holds no names at its top.
    """
    try:
        if suffix == ".toml":
            found = [_toml(text)]
        elif suffix == ".json":
            found = [json_content(text, origin)]
        else:
            _judge(text)
            found = [tree for tree in yaml.load_all(text, _Loader) if tree is not None]
        named = [_named(tree, Budget()) for tree in found]
    except SpecError as error:
        raise SpecError(error.faults, origin=origin) from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        kind = suffix[1:].upper().replace("YML", "YAML")
        is_deep = isinstance(error, RecursionError)
        told = "it nests too deeply" if is_deep else " ".join(str(error).split())
        raise SpecError(Fault("", f"is not {kind}: {told}"), origin=origin) from error
    trees = [tree for tree in named if isinstance(tree, dict)]
    if not trees or len(trees) < len(named):
        raise SpecError(Fault("", "expected names with values at its top"), origin=origin)
    return trees


def _named(value: object, budget: Budget) -> object:
    """Return a tree with all names as texts, numbers and dates among them."""
    budget.spend(values=1)
    if isinstance(value, Mapping):
        with budget.deeper():
            return {str(key): _named(one, budget) for key, one in value.items()}
    if isinstance(value, list):
        with budget.deeper():
            return [_named(one, budget) for one in value]
    if isinstance(value, int) and abs(value) >= 2**64:
        raise ValueError("a whole number beyond 2^64 is not an option")
    return value


def _toml(text: str) -> dict[str, object]:
    """Return the tree of a TOML text; overlong dotted names are refused first."""
    budget = Budget()
    budget.spend(values=text.count("=") + text.count(",") + text.count("["))
    heads = (line.partition("#")[0].partition("=")[0] for line in text.splitlines())
    dots = (name.count(".") for head in heads for name in head.split(","))
    budget.spend(depth=max(dots, default=0))
    return tomllib.loads(text)


def _judge(text: str) -> None:
    """Charge the size of a YAML text, each alias as large as the value that it repeats.

    The events of the parser are counted; nothing is built.
    """
    budget, sizes = Budget(), dict[str, int]()
    opened: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, Loader=_Events):
        if isinstance(event, yaml.CollectionStartEvent):
            budget.spend(depth=1)
            opened.append((event.anchor, count))
        elif isinstance(event, yaml.CollectionEndEvent):
            budget.depth += 1
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = count - before + 1
        size = sizes.get(event.anchor or "", 1) if isinstance(event, yaml.AliasEvent) else 1
        budget.spend(values=size)
        count += size


_Events = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Events):  # type: ignore[misc,valid-type]
    """YAML as programs read it; a field that one mapping states twice is a fault."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        names = Counter(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode))
        twice = next((name for name, count in names.items() if count > 1 and name != "<<"), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"{twice} is given twice below line {line}")
        found: dict[Hashable, object] = super().construct_mapping(node, deep=deep)
        return found

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # of a stated tag
            kind, line = node.tag.rpartition(":")[2], node.start_mark.line + 1
            message = f"{shown(node.value)} on line {line} is no {kind}"
            raise yaml.YAMLError(message) from error
