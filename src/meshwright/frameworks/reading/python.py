"""Python files as data: the objects that their functions build; nothing in them is run.

Literals, arithmetic, calls with keywords, assignments to attributes, functions and classes of the
file, tests and loops over known values are followed. A call of a name that the file does not define
becomes :class:`Built`: its name with its arguments. Unknown values are marked, as in scripts, and
are faults where something depends on them.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeGuard

from meshwright.base.budget import Budget, as_mapping
from meshwright.base.errors import Fault, SpecError
from meshwright.frameworks.reading.shell import is_unknown, unknown, unknown_in

TARGET, WORDS = "_target_", "_args_"
"""Keys of a tree for the name called and for its positional arguments, as in Hydra."""
Scope = dict[str, object]
"""Values of names in a file, a function or a class."""
_MOST_DEPTH = 40
"""Most nested calls; the result of a deeper call is unknown."""


class Reference(str):
    """The name of something that another file defines: ``torch.bfloat16``."""

    __slots__ = ()


@dataclass
class Built:
    """Result of a call of an unknown name: the name, arguments, and attributes set later."""

    target: str
    words: tuple[object, ...] = ()
    fields: dict[str, object] = field(default_factory=dict)
    text: str = ""
    """The call as it is written, and its line."""
    line: int = 0
    unread: list[Fault] = field(default_factory=list)
    """Statements that may change it and are not followed."""


@dataclass(frozen=True)
class _Function:
    node: ast.FunctionDef
    scope: Scope


@dataclass(frozen=True)
class _Class:
    name: str
    fields: Mapping[str, object]


class _ReturnError(Exception):
    def __init__(self, value: object) -> None:
        self.value = value


class PythonFile:
    """A file, followed once from top to bottom."""

    def __init__(self, text: str, name: str, variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.variables = dict(variables or {})
        self.started: list[Built] = []
        """Calls with an unused result and with objects among their arguments."""
        self.imported: set[str] = set()
        """Names that another file defines, so they are not variables of this one."""
        self.budget, self.depth = Budget(), 0
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            # the parser has no stack for expressions of thousands of levels
            raise SpecError(Fault("", f"is not Python: {error}"), origin=name) from error
        self.scope: Scope = {"__name__": "__main__"}
        with self._named():
            self._run(tree.body)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file in the error where following it takes too long or goes too deep."""
        try:
            yield
        except SpecError as error:
            raise SpecError(error.faults, origin=self.name) from error
        except (RecursionError, ValueError) as error:  # or numbers of thousands of digits
            fault = Fault("", "is not followed: it nests too deeply, or has endless numbers")
            raise SpecError(fault, origin=self.name) from error

    def _run(self, body: list[ast.stmt]) -> None:
        with suppress(_ReturnError):
            self._block(body, self.scope)

    def trees(self) -> dict[str, dict[str, object]]:
        """Return the configurations that the file builds, by name, and its plain variables.

        Programs that it starts count alone; else the values of its variables, and the results of
        its functions without arguments. Variables in capitals are a tree without a name.
        """
        return self._trees

    @cached_property
    def _trees(self) -> dict[str, dict[str, object]]:
        constants = {
            name: value for name, value in self.scope.items()
            if name.isupper() and name not in self.imported
            and (_is_known(value) or isinstance(value, Reference))
        }  # fmt: skip
        with self._named():
            budget = Budget()
            trees = self._objects | ({"": constants} if constants else {})
            return {name: dict(as_mapping(as_tree(one, budget))) for name, one in trees.items()}

    def unread(self, name: str) -> list[Fault]:
        """Return the statements that may change a configuration, and are not followed."""
        return list(dict.fromkeys(_unread(self._objects.get(name))))

    @cached_property
    def _objects(self) -> dict[str, Built]:
        started = [
            one for call in self.started for one in (*call.words, *call.fields.values())
            if isinstance(one, Built) and one.target
        ]  # fmt: skip
        if started:
            return {f"{one.target} (line {one.line})": one for one in started}
        found = {name: value for name, value in self.scope.items() if isinstance(value, Built)}
        with self._named():
            for name, value in list(self.scope.items()):
                if isinstance(value, _Function) and _needs_nothing(value.node.args):
                    result = self._call_function(value, (), {})
                    if isinstance(result, Built):
                        found[name] = result
        return found

    # -------------------------------------------------------------------------- statements

    def _block(self, body: Iterable[ast.stmt], scope: Scope) -> None:
        for node in body:
            self.budget.spend(steps=1, at=f"line {node.lineno}")
            handler = getattr(self, f"_do_{type(node).__name__.lower()}", None)
            if handler is not None:
                handler(node, scope)
            elif not isinstance(node, _SILENT):
                self._unfollowed(node, scope)

    def _do_import(self, node: ast.Import, scope: Scope) -> None:
        for one in node.names:
            scope[one.asname or one.name.partition(".")[0]] = Reference(
                one.name if one.asname else one.name.partition(".")[0]
            )

    def _do_importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        for one in node.names:
            where = "." * node.level + (node.module or "")
            dot = "" if where.endswith(".") or not where else "."
            scope[one.asname or one.name] = Reference(f"{where}{dot}{one.name}")
            self.imported.add(one.asname or one.name)

    def _do_functiondef(self, node: ast.FunctionDef, scope: Scope) -> None:
        scope[node.name] = _Function(node, scope)

    def _do_classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        self.budget.spend(values=len(scope))
        own: Scope = dict(scope)
        self._block([one for one in node.body if not isinstance(one, ast.FunctionDef)], own)
        names = {key: value for key, value in own.items() if key not in scope}
        scope[node.name] = _Class(node.name, names)

    def _do_assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self._put(target, value, scope)

    def _do_annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._put(node.target, self.value(node.value, scope), scope)

    def _do_augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        whole = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
        self._put(node.target, self.value(whole, scope), scope)

    def _do_return(self, node: ast.Return, scope: Scope) -> None:
        raise _ReturnError(None if node.value is None else self.value(node.value, scope))

    def _do_raise(self, node: ast.Raise, scope: Scope) -> None:
        raise _ReturnError(None)

    def _do_with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self._put(item.optional_vars, self.value(item.context_expr, scope), scope)
        self._block(node.body, scope)

    def _do_try(self, node: ast.Try, scope: Scope) -> None:
        self._block([*node.body, *node.orelse, *node.finalbody], scope)

    def _do_if(self, node: ast.If, scope: Scope) -> None:
        test = self.value(node.test, scope)
        if _is_known(test):
            self._block(node.body if test else node.orelse, scope)
        else:
            self._unfollowed(node, scope)

    def _do_for(self, node: ast.For, scope: Scope) -> None:
        values = self.value(node.iter, scope)
        if not isinstance(values, list | tuple | range | dict):
            self._unfollowed(node, scope)
            return
        for value in list(values):
            self._put(node.target, value, scope)
            self._block(node.body, scope)

    def _do_expr(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Call):
            return
        call, name = node.value, _dotted(node.value.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend"):
            values = self.value(call.func.value, scope)
            if isinstance(values, list) and len(call.args) == 1:
                more = self.value(call.args[0], scope)
                more = more if call.func.attr == "extend" and _is_list(more) else [more]
                self.budget.spend(values=len(more), at=f"line {node.lineno}")
                values.extend(more)
                return
        if name.partition(".")[0] in _SPEAKERS:
            return
        result = self.value(call, scope)
        if isinstance(result, Built):
            held = [one for one in (*result.words, *result.fields.values())
                    if isinstance(one, Built)]  # fmt: skip
            if isinstance(call.func, ast.Attribute):
                owner = self.value(call.func.value, scope)
                held += [owner] if isinstance(owner, Built) else []
            last = name.rpartition(".")[2]
            if last in _APPLY_WORDS:
                return
            if last in _STARTS:
                self.started += [result] if held else []
                return
            fault = Fault(f"line {node.lineno}", f"{_source(call)!r} is not followed")
            for one in held:
                one.unread.append(fault)

    def _unfollowed(self, node: ast.stmt, scope: Scope) -> None:
        """Mark the variables that a statement changes and that cannot be followed."""
        first = _unparsed(node).splitlines()[0][:60]
        fault = Fault(f"line {node.lineno}", f"{first!r} is not followed")
        for one in ast.walk(node):
            self.budget.spend(values=1)
            if isinstance(one, ast.Return):
                raise _ReturnError(unknown(f"{first} (line {node.lineno})"))
            targets = one.targets if isinstance(one, ast.Assign) else (
                [one.target] if isinstance(one, ast.AugAssign | ast.AnnAssign) else [])  # fmt: skip
            for target in targets:
                if isinstance(target, ast.Name):
                    scope[target.id] = unknown(f"{target.id} (line {node.lineno})")
                else:
                    owner = self.value(_root(target), scope)
                    if isinstance(owner, Built):
                        owner.unread.append(fault)

    def _put(self, target: ast.expr, value: object, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, scope)
            if isinstance(owner, Built):
                owner.fields[target.attr] = value
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            if isinstance(owner, dict) and isinstance(key, str | int | float) and _is_known(key):
                owner[key] = value
            elif isinstance(owner, list) and isinstance(key, int) and key < len(owner):
                owner[max(key, -len(owner))] = value
            elif isinstance(owner, Built) and isinstance(key, str):
                owner.fields[key] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = value if _is_list(value) and len(value) == len(target.elts) else None
            for index, one in enumerate(target.elts):
                part = unknown(_source(one)) if values is None else values[index]
                self._put(one, part, scope)

    # ------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, scope: Scope) -> object:
        """Return the value of an expression; a mark where it is unknown."""
        self.budget.spend(steps=1, at=f"line {node.lineno}")
        handler = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        value = _unknown(node) if handler is None else handler(node, scope)
        if isinstance(value, str):
            self.budget.spend(letters=len(value), at=f"line {node.lineno}")
        return value

    def _of_constant(self, node: ast.Constant, scope: Scope) -> object:
        """Return a literal; bytes, complex numbers and integers from 2^64 on are unknown."""
        value = node.value
        is_large = isinstance(value, int) and abs(value) >= 2**64
        is_plain = value is None or isinstance(value, str | int | float)
        return value if is_plain and not is_large else _unknown(node)

    def _of_name(self, node: ast.Name, scope: Scope) -> object:
        if node.id in scope:
            return scope[node.id]
        return self.scope.get(node.id, Reference(node.id))

    def _of_attribute(self, node: ast.Attribute, scope: Scope) -> object:
        return self._attribute(self.value(node.value, scope), node)

    def _attribute(self, owner: object, node: ast.Attribute) -> object:
        if isinstance(owner, Reference):
            return Reference(f"{owner}.{node.attr}")
        if isinstance(owner, _Class):
            return owner.fields.get(node.attr, Reference(f"{owner.name}.{node.attr}"))
        if isinstance(owner, Built):
            return owner.fields.setdefault(
                node.attr, Built("", text=_marked(node), line=node.lineno)
            )
        return _unknown(node)

    def _of_list(self, node: ast.List | ast.Tuple, scope: Scope) -> list[object]:
        return self._entries(node.elts, scope)

    def _entries(self, nodes: Iterable[ast.expr], scope: Scope) -> list[object]:
        values: list[object] = []
        for one in nodes:
            part = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            more = part if isinstance(one, ast.Starred) and _is_list(part) else [part]
            self.budget.spend(values=len(more), at=f"line {one.lineno}")
            values += more
        return values

    def _of_tuple(self, node: ast.Tuple, scope: Scope) -> tuple[object, ...]:
        return tuple(self._of_list(node, scope))

    def _of_dict(self, node: ast.Dict, scope: Scope) -> dict[object, object]:
        found: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            part = self.value(value, scope)
            self.budget.spend(values=1)
            if key is None:
                more = part if isinstance(part, dict) else {}
                self.budget.spend(values=len(more))
                found |= more
            elif isinstance(name := self.value(key, scope), str | int | float):
                found[name] = part
        return found

    def _of_subscript(self, node: ast.Subscript, scope: Scope) -> object:
        owner, key = self.value(node.value, scope), self.value(node.slice, scope)
        if isinstance(owner, Reference) and owner.endswith("environ"):
            return self._variable(str(key), _unknown(node))
        if isinstance(owner, dict | list | tuple) and isinstance(key, str | int):
            try:
                return owner[key]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return _unknown(node)
        return _unknown(node)

    def _of_unaryop(self, node: ast.UnaryOp, scope: Scope) -> object:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return not value if _is_known(value) else _unknown(node)
        is_negative = isinstance(node.op, ast.USub)
        return -value if is_negative and isinstance(value, int | float) else _unknown(node)

    def _of_binop(self, node: ast.BinOp, scope: Scope) -> object:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        apply = _OPERATORS.get(type(node.op))
        if apply is None or not (_is_known(left) and _is_known(right)):
            return _unknown(node)
        try:
            self.budget.spend(letters=_room(node.op, left, right), at=f"line {node.lineno}")
            value = apply(left, right)
        except (TypeError, ValueError, ArithmeticError, LookupError):
            return _unknown(node)
        if _is_list(value) or isinstance(value, dict):
            self.budget.spend(values=len(value), at=f"line {node.lineno}")
        return _unknown(node) if isinstance(value, complex) else value

    def _of_boolop(self, node: ast.BoolOp, scope: Scope) -> object:
        is_and, value = isinstance(node.op, ast.And), None
        for one in node.values:
            value = self.value(one, scope)
            if not _is_known(value):
                return _unknown(node)
            if bool(value) != is_and:
                return value
        return value

    def _of_compare(self, node: ast.Compare, scope: Scope) -> object:
        left = self.value(node.left, scope)
        for sign, one in zip(node.ops, node.comparators, strict=True):
            right = self.value(one, scope)
            if not (_is_known(left) and _is_known(right)):
                return _unknown(node)
            self.budget.walk([left, right], f"line {node.lineno}")
            try:
                if not _COMPARES[type(sign)](left, right):
                    return False
            except TypeError:
                return _unknown(node)
            left = right
        return True

    def _of_ifexp(self, node: ast.IfExp, scope: Scope) -> object:
        test = self.value(node.test, scope)
        if not _is_known(test):
            return _unknown(node)
        return self.value(node.body if test else node.orelse, scope)

    def _of_joinedstr(self, node: ast.JoinedStr, scope: Scope) -> object:
        parts = [self.value(getattr(one, "value", one), scope)
                 if isinstance(one, ast.FormattedValue) else one.value  # type: ignore[attr-defined]
                 for one in node.values]  # fmt: skip
        known = all(isinstance(one, str | int | float) for one in parts)
        return "".join(map(str, parts)) if known else _unknown(node)

    def _of_call(self, node: ast.Call, scope: Scope) -> object:
        words = tuple(self._entries(node.args, scope))
        fields: dict[str, object] = {}
        for one in node.keywords:
            value = self.value(one.value, scope)
            if one.arg is not None:
                fields[one.arg] = value
            elif isinstance(value, dict):
                fields |= {str(key): part for key, part in value.items()}
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
            if isinstance(owner, Built):  # a method of something unknown
                name = f"{owner.target}.{node.func.attr}"
                return _made(name, (*owner.words, *words), fields, node)
            callee = self._attribute(owner, node.func)
        else:
            callee = self.value(node.func, scope)
        if isinstance(callee, _Function):
            return self._call_function(callee, words, fields)
        if isinstance(callee, _Class):
            return _made(callee.name, words, dict(callee.fields) | fields, node)
        if isinstance(callee, Reference):
            return self._call_known(callee, words, fields, node)
        return _made(_dotted(node.func), words, fields, node)

    def _call_known(
        self, name: Reference, words: tuple[object, ...], fields: dict[str, object], node: ast.Call
    ) -> object:
        """Return the result of the few functions that are known, else the object built."""
        last = name.rpartition(".")[2]
        if last in ("getenv", "get") and words and ("environ" in name or last == "getenv"):
            default = words[1] if len(words) > 1 else fields.get("default", unknown(str(words[0])))
            return self._variable(str(words[0]), default)
        if last in ("replace", "copy", "deepcopy") and words and isinstance(words[0], Built):
            copied = deepcopy(words[0])
            copied.fields |= fields
            return copied
        if last == "dict" and not words:
            return fields
        if last in _BUILT_IN and name == last and not fields and all(map(_is_known, words)):
            self.budget.walk(words, f"line {node.lineno}")
            try:
                value = _BUILT_IN[last](*words)
            except (TypeError, ValueError, OverflowError):
                return _unknown(node)
            if _is_list(value):
                self.budget.spend(values=len(value), at=f"line {node.lineno}")
            return value
        return _made(name, words, fields, node)

    def _call_function(
        self, function: _Function, words: tuple[object, ...], fields: dict[str, object]
    ) -> object:
        """Return the result of a function of the file."""
        self.budget.spend(values=len(function.scope) + len(words) + len(fields))
        node, scope = function.node, dict(function.scope)
        if self.depth >= _MOST_DEPTH:
            return unknown(f"{node.name}()")
        names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
        for name, default in zip(reversed(names), reversed(node.args.defaults), strict=False):
            scope[name] = self.value(default, function.scope)
        for one, usual in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            scope[one.arg] = (
                Reference(one.arg) if usual is None else self.value(usual, function.scope)
            )
        scope |= dict(zip(names, words, strict=False))
        known = {*names, *(one.arg for one in node.args.kwonlyargs)}
        scope |= {name: value for name, value in fields.items() if name in known}
        if node.args.kwarg is not None:
            scope[node.args.kwarg.arg] = {k: v for k, v in fields.items() if k not in known}
        if node.args.vararg is not None:
            scope[node.args.vararg.arg] = words[len(names) :]
        self.depth += 1
        try:
            self._block(node.body, scope)
        except _ReturnError as returned:
            return returned.value
        finally:
            self.depth -= 1
        return None

    def _variable(self, name: str, default: object) -> object:
        """Return a variable of the environment."""
        return self.variables.get(name, default)


def as_tree(value: object, budget: Budget, depth: int = 0) -> object:
    """Return a value in the form of trees of files; built objects have the keys of Hydra.

    A call nested below a section is an unknown value.
    """
    budget.spend(values=1)
    if isinstance(value, Built):
        if depth > 1 or (depth == 1 and not value.target and not value.fields):
            return unknown(value.text or value.target)
        found: dict[str, object] = {TARGET: str(value.target)} if value.target else {}
        words = [as_tree(one, budget, depth + 1) for one in value.words]
        found |= {WORDS: words} if words else {}
        parts = {
            name: as_tree(one, budget, depth + 1) for name, one in value.fields.items()
            if not isinstance(one, Built) or one.target or _holds(one)
        }  # fmt: skip
        return found | parts
    if isinstance(value, dict):
        with budget.deeper():
            return {str(name): as_tree(one, budget, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        with budget.deeper():
            return [as_tree(one, budget, 1) for one in value]
    if isinstance(value, Reference):
        return str(value)
    plain = value is None or isinstance(value, str | int | float | bool)
    return value if plain else unknown(type(value).__name__)


def _unread(value: object) -> list[Fault]:
    """Return the statements that may change an object, or a part of it, and are not followed."""
    if not isinstance(value, Built):
        return []
    return [*value.unread, *(one for part in value.fields.values() for one in _unread(part))]


def _holds(value: Built) -> bool:
    """Return whether anything was set in an attribute that no call built."""
    return any(not isinstance(one, Built) or one.target or _holds(one)
               for one in value.fields.values())  # fmt: skip


def _is_known(value: object) -> bool:
    if isinstance(value, Built | Reference | _Function | _Class):
        return False
    return not (isinstance(value, str) and (is_unknown(value) or unknown_in(value)))


def _is_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)


def _room(sign: ast.operator, left: object, right: object) -> int:
    """Return the most characters or entries that an operation builds.

    Raises
    ------
    ValueError
        When the operation makes numbers of unbounded length, or its size is unknown beforehand.
    """
    if isinstance(left, int | float) and isinstance(right, int | float):
        is_power = isinstance(sign, ast.Pow | ast.LShift | ast.RShift)
        if max(abs(left), abs(right)) > 2**63 or (is_power and abs(right) > 64):
            raise ValueError("too large for any option")
        return 0
    if isinstance(sign, ast.Mult):
        count, part = (left, right) if isinstance(left, int) else (right, left)
        return _length(part) * max(count if isinstance(count, int) else 0, 0)
    if isinstance(sign, ast.Mod) and isinstance(left, str):
        parts = right.values() if isinstance(right, dict) else right if _is_list(right) else [right]
        if "*" in left or not all(isinstance(one, str | int | float) for one in parts):
            raise ValueError("a width, or a text, of any length")
        longest = max((len(one) for one in parts if isinstance(one, str)), default=0) + 400
        widths = sum(map(int, re.findall(r"[0-9]{1,9}", left)))
        return len(left) + left.count("%") * longest + widths
    return _length(left) + _length(right)


def _length(value: object) -> int:
    if not isinstance(value, Sized):
        raise TypeError("has no length")
    return len(value)


def _needs_nothing(arguments: ast.arguments) -> bool:
    own = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return own <= 0 and all(one is not None for one in arguments.kw_defaults)


@lru_cache(4096)
def _loaded(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def _dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _unparsed(node: ast.AST) -> str:
    """Return the source of a node; Python writes no numbers of thousands of digits."""
    try:
        return ast.unparse(node)
    except ValueError:
        return "a number of too many digits"


@lru_cache(4096)
def _source(node: ast.expr) -> str:
    text = " ".join(_unparsed(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _marked(node: ast.expr) -> str:
    return f"{_source(node)} (line {node.lineno})"


def _made(
    target: str, words: tuple[object, ...], fields: dict[str, object], node: ast.expr
) -> Built:
    return Built(target, words, fields, _marked(node), node.lineno)


def _unknown(node: ast.expr) -> str:
    return unknown(_marked(node))


_SILENT = (ast.Pass, ast.Assert, ast.Global, ast.Nonlocal, ast.Delete, ast.Continue, ast.Break)
_SPEAKERS = ("print", "logger", "logging", "log", "warnings", "sys", "os", "random", "time")
"""Functions and modules that change no configuration."""
_STARTS = ("pretrain", "finetune", "train", "fit", "run")
"""Functions that start a job with a configuration."""
_APPLY_WORDS = ("apply_overrides",)
"""Functions that put words of the command line into a configuration; the reader reads them."""
_OPERATORS: dict[type, Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
}  # fmt: skip
_COMPARES: dict[type, Callable[..., bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FAR = 1_000_000
"""Largest bound of a range; a longer one has more entries than any reader may build."""
_BUILT_IN: dict[str, Callable[..., object]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "min": min, "max": max,
    "list": list, "tuple": tuple, "abs": abs, "sorted": sorted,
    "round": lambda number, digits=None: round(number, digits and max(-99, min(digits, 99))),
    "range": lambda *words: list(range(*(max(-_FAR, min(word, _FAR)) for word in words))),
}  # fmt: skip
