"""Damages inputs as accidents and attackers do, the same way for the same seed."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

VALUES = (
    "0", "-1", "1", "2", "3", "7", "1.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-0.0", "1e9",
    "1M", "1000000000", "18446744073709551616", "9" * 4400, "1_0", "0x10", "010", "1:30", "½", "٣",
    "", " ", "null", "~", "true", "no", "[]", "{}", "a,b", ",", "=", "*", "&a", "'", '"', "\\", "#",
    "\x1b[31m", "\u2028", "\u202e", "\x00", "\x85", "é" * 300, "x" * 5000, "../..", "None", "1,2,3",
    "80 GiB", "1e308 TB/s", "-5 W", "0 s", "1e40 B", "8k", "30d", "1.5M", "!!map [1]", "$(", "${X",
    "bf16", "fp8", "full", "torus", "8", "16", "64", "4096",
)  # fmt: skip
TREES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1.5, 10**9, 10**30, 10**400, 1e308, 1e-320, float("inf"), float("nan"),
    "", "x", "nan", "\u2028", "\x1b[2J", [], {}, [1], [[]], {"a": 1}, {"": None}, [None], "8 GiB",
    "9" * 4400, [0] * 300, {"x": {"x": {"x": {}}}},
)  # fmt: skip
TOKEN = re.compile(r"[A-Za-z_][\w.-]*|-?\d[\w.+-]*")


def text(source: str, chance: Random) -> str:
    """Return a text with one to three tokens, lines or parts damaged."""
    for _ in range(chance.randint(1, 3)):
        if not source:
            return chance.choice(VALUES)
        kind, tokens = chance.randrange(9), list(TOKEN.finditer(source))
        a, b = sorted(chance.randrange(len(source) + 1) for _ in range(2))
        lines = source.splitlines(keepends=True)
        line = chance.randrange(len(lines))
        if kind <= 3 and tokens:
            found = chance.choice(tokens)
            source = source[: found.start()] + chance.choice(VALUES) + source[found.end() :]
        elif kind == 4:
            source = source[:a] + chance.choice(VALUES) + source[a:]
        elif kind == 5:
            source = source[:a] + source[min(b, a + 200) :]
        elif kind == 6:
            source = "".join([*lines[:line], *lines[line : line + 1] * 2, *lines[line + 1 :]])
        elif kind == 7:
            source = "".join(lines[:line] + lines[line + 1 :])
        else:
            source = source[:a]
    return source


def tree(value: Any, chance: Random) -> Any:
    """Return a tree with one value, or one name, that is something else."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(list(value))
        kind = chance.randrange(12)
        kept = {key: one for key, one in value.items() if key != name or kind > 0}
        if kind == 1:
            kept[chance.choice(("x", "\x1b", "a\u2028b", "1", "", "source", "value"))] = value[name]
        elif kind > 1:
            kept[name] = tree(value[name], chance)
        return kept
    if isinstance(value, list) and value and chance.random() < 0.85:
        place = chance.randrange(len(value))
        return [*value[:place], tree(value[place], chance), *value[place + 1 :]]
    return chance.choice(TREES)


def content(source: bytes, suffix: str, chance: Random) -> bytes:
    """Return the content of a file, damaged in its tree, in its text or in its bytes."""
    kind = chance.random()
    if kind < 0.04:
        return _bytes(source, chance)
    if kind < 0.06 and suffix not in _PACKED:
        return gzip.compress(content(source, suffix, chance), mtime=0)
    if suffix in _PACKED:
        damaged = _PACKED[suffix](source, chance)
        return damaged if kind < 0.8 else _bytes(damaged, chance)
    plain = source.decode("utf-8", "replace")
    if kind < 0.6 and suffix in (".json", ".yaml", ".yml"):
        try:
            if suffix == ".json":
                return json.dumps(tree(json.loads(plain), chance)).encode()
            return yaml.dump_all(
                [tree(one, chance) for one in yaml.load_all(plain, yaml.CSafeLoader)],
                Dumper=yaml.CSafeDumper, sort_keys=False,
            ).encode()  # fmt: skip
        except (ValueError, yaml.YAMLError):
            pass
    grown = _grown if kind > 0.99 else text
    return grown(plain, chance).encode("utf-8", "replace")


def _grown(source: str, chance: Random) -> str:
    """Return a text in which a line, or a piece of one, stands up to 60,000 times."""
    times = chance.choice((300, 5_000, 60_000))
    if chance.random() < 0.5:
        lines = source.splitlines(keepends=True) or ["\n"]
        line = chance.randrange(len(lines))
        return "".join([*lines[:line], lines[line] * times, *lines[line:]])
    a = chance.randrange(len(source) + 1)
    piece = chance.choice(("[", "{", "(", "- ", '{"a":', "$(", "`", source[a : a + 8]))
    return source[:a] + piece * times + source[a:]


def _bytes(source: bytes, chance: Random) -> bytes:
    """Return bytes of which four are others or in addition, or which end early."""
    place, kind = chance.randrange(len(source) + 1), chance.randrange(3)
    some = bytes(chance.randrange(256) for _ in range(4))
    return source[:place] + (some + source[place + 4 * kind :] if kind < 2 else b"")


def _gzip(source: bytes, chance: Random) -> bytes:
    return gzip.compress(content(gzip.decompress(source), "", chance), mtime=0)


def _exported(source: bytes, chance: Random) -> bytes:
    """Return an archive of ``torch.export`` with another program, members or names."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(source)) as archive,
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as other,
    ):
        for name in archive.namelist():
            held = archive.read(name)
            if chance.random() < 0.9:
                held = content(held, ".json", chance)
            if chance.random() < 0.02:
                name = chance.choice(("../" + name, "/x", name.upper(), "data/weights/x.pt"))
            other.writestr(name, held)
    return made.getvalue()


def _onnx(source: bytes, chance: Random) -> bytes:
    """Return a network with another value in one of its fields."""
    from google.protobuf import json_format
    from onnx import ModelProto

    fields = json_format.MessageToDict(ModelProto.FromString(source))
    for _ in range(20):
        try:
            damaged = json_format.ParseDict(tree(fields, chance), ModelProto())
            return bytes(damaged.SerializeToString())
        except (json_format.ParseError, TypeError, ValueError, OverflowError):
            continue
    return _bytes(source, chance)


_PACKED: dict[str, Callable[[bytes, Random], bytes]] = {
    ".gz": _gzip, ".pt2": _exported, ".onnx": _onnx,
}  # fmt: skip
