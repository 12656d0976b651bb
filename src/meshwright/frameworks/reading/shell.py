"""Shell scripts: the commands that they start, with variables, arrays and defaults put in.

A script is read, not run. Assignments, arrays, defaults (``${X:-8}``), arithmetic, tests, loops
over words, functions, ``eval`` and files written by ``cat <<EOF`` are followed. Values that only a
machine knows (``$(nvidia-smi)``, variables of its environment) are not: such text carries a mark,
which :func:`unknown_in` finds, and tests of it count as false.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from meshwright.base.budget import Budget, tries
from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import SCRIPTS
from meshwright.base.units import whole_number

if TYPE_CHECKING:
    from tree_sitter import Node

_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")
_WORD = re.compile(f"(?:{_OPEN}[^{_CLOSE}]*{_CLOSE}|\\S)+")


def unknown(what: str) -> str:
    """Return text that stands for a value that only the machine knows."""
    return f"{_OPEN}{what}{_CLOSE}"


def unknown_in(text: str) -> str:
    """Return the unknown value that a text depends on; empty: none."""
    found = _MARK.search(text)
    return found.group(1) if found else ""


def is_unknown(word: str) -> bool:
    """Return whether a whole word is unknown: it may stand for none or several words."""
    return _MARK.fullmatch(word) is not None


def base_name(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def as_written(text: str) -> str:
    """Return a text for people: ``$NAME`` for an unknown value."""
    return _MARK.sub(lambda found: f"${found.group(1)}", text)


@dataclass(frozen=True)
class Command:
    """A command of a script, and the line on which it stands."""

    words: tuple[str, ...]
    line: int
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that it sees: exported, or put before it (``NGPU=8 ./run_train.sh``)."""


@dataclass
class Script:
    """Commands and files of a script, with notes where reading it was not certain."""

    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Files that it writes itself, by name."""
    notes: list[str] = field(default_factory=list)


def read_script(
    text: str, *, stated: Mapping[str, str] | None = None,
    others: Mapping[str, str] | None = None, budget: Budget | None = None,
) -> Script:  # fmt: skip
    """Return the commands that a script starts.

    Parameters
    ----------
    stated
        Values of variables that the script does not set itself, ``1`` the first argument.
    others
        Texts of scripts that it may source or call, by file name.
    budget
        Limits on the work of following it and all other scripts of a job.

    Raises
    ------
    SpecError
        When the script never ends, or its values outgrow the budget.
    """
    found = Script()
    try:
        _Shell(found, dict(stated or {}), dict(others or {}), budget or Budget()).run_text(text)
    except RecursionError as error:
        message = "calls itself, or nests deeper than is followed"
        raise SpecError(Fault("", message)) from error
    return found


class _StopError(Exception):
    """The script exits."""


class _LeaveError(Exception):
    """A loop is left, or its next round begins: break or continue."""


Value = str | list[str] | dict[str, str]
"""Value of a variable: text, an array, or an array by name."""


class _Shell:
    def __init__(
        self, found: Script, stated: dict[str, str], others: dict[str, str], budget: Budget
    ) -> None:
        self.found, self.budget = found, budget
        self.variables: dict[str, Value] = dict(stated)
        self.others = others
        self.functions: dict[str, Node] = {}
        self.first_line = 0
        self.put_before: dict[str, str] = {}
        self.input = ""
        self.printed: list[str] | None = None
        self.exported: set[str] = set()

    # -------------------------------------------------------------------------- statements

    def run_text(self, text: str, first_line: int = 0) -> None:
        """Follow a script, or a part of one that stands in quotes."""
        before, self.first_line = self.first_line, first_line
        self.budget.spend(letters=_PARSING * len(text), at=f"line {first_line + 1}")
        try:
            whole = _parsed(_MARK.sub(self._held, text))
            for node in (one for one in _below(whole) if one.type == "ERROR"):
                what = _text(node).splitlines()[0][:60] if _text(node) else ""
                self.found.notes.append(f"line {self._line(node)}: {what!r} is not understood")
            self.run(whole)
        except (_StopError, _LeaveError):
            pass
        finally:
            self.first_line = before

    def _held(self, found: re.Match[str]) -> str:
        """Return a variable for an unknown value: one word in text that is followed."""
        name = f"unknown_{len(self.variables)}"
        self.variables[name] = found.group()
        return f"${{{name}}}"

    def run(self, node: Node) -> bool:
        """Follow a statement; return whether it succeeds, as far as that is known."""
        self.budget.spend(steps=1, at=f"line {self._line(node)}")
        kind = node.type
        handler = getattr(self, f"_run_{kind}", None)
        if handler is not None:
            return bool(handler(node))
        done = True
        if kind in _TRANSPARENT:
            for child in node.named_children:
                done = self.run(child)
        return done

    def _line(self, node: Node) -> int:
        return self.first_line + int(node.start_point[0]) + 1

    def _run_variable_assignment(self, node: Node) -> bool:
        name_node = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        assert name_node is not None
        adds = any(child.type == "+=" for child in node.children)
        name = _text(name_node)
        if name_node.type == "subscript":
            return self._assign_element(name_node, value_node)
        value: str | list[str]
        before = self.variables.get(name)
        if isinstance(before, dict) and value_node is not None and value_node.type == "array":
            pairs = (_ENTRY.fullmatch(self.text(child)) for child in value_node.named_children)
            before |= {pair[1].strip("\"'"): pair[2] for pair in pairs if pair}
            return True
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            parts = [child for child in value_node.named_children if child.type != "comment"]
            value = [word for child in parts for word in self.fields(child)]
        else:
            value = self.text(value_node)
        if adds:
            is_text = isinstance(value, str) and isinstance(before or "", str)
            value = f"{before or ''}{value}" if is_text else [*_as_list(before), *_as_list(value)]
        self.budget.spend(letters=sum(map(len, value)), values=len(_as_list(value)))
        self.variables[name] = value
        return True

    def _run_declaration_command(self, node: Node) -> bool:
        options = [_text(child) for child in node.named_children if child.type == "word"]
        if any(option.startswith("-") and "A" in option for option in options):
            for child in node.named_children:
                if child.type in ("variable_assignment", "variable_name"):
                    self.variables[_text(child).partition("=")[0]] = {}
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._run_variable_assignment(child)
            if child.type in ("variable_assignment", "variable_name") and _text(node).startswith(
                "export"
            ):
                self.exported.add(_text(child).partition("=")[0].rstrip("+"))
        return True

    def _assign_element(self, name_node: Node, value_node: Node | None) -> bool:
        name, _, index = _text(name_node).partition("[")
        table = self.variables.get(name)
        if isinstance(table, dict):
            table[self._key(name_node)] = "" if value_node is None else self.text(value_node)
            return True
        number, values = self._number(index.rstrip("]")), _as_list(table)
        if number is None or number < -len(values) or value_node is None:
            self.variables[name] = unknown(name)
            return True
        self.budget.spend(values=max(number + 1, len(values)), at=f"line {self._line(name_node)}")
        values += [""] * (number + 1 - len(values))
        values[number] = self.text(value_node)
        self.variables[name] = values
        return True

    def _key(self, node: Node) -> str:
        """Return the name between the brackets of a subscript."""
        index = node.child_by_field_name("index")
        return "" if index is None else self.text(index)

    def _run_function_definition(self, node: Node) -> bool:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[_text(name)] = body
        return True

    def _run_list(self, node: Node) -> bool:
        first, last = node.named_children[0], node.named_children[-1]
        done = self.run(first)
        is_and = any(child.type == "&&" for child in node.children)
        return self.run(last) if done == is_and else done

    def _run_negated_command(self, node: Node) -> bool:
        return not self.run(node.named_children[0])

    def _run_pipeline(self, node: Node) -> bool:
        done = [self.run(child) for child in node.named_children]
        return all(done)

    def _run_if_statement(self, node: Node) -> bool:
        own = [child for child in node.named_children if not child.type.endswith("_clause")]
        clauses = [child for child in node.named_children if child.type.endswith("_clause")]
        for parts in (own, *(c.named_children for c in clauses if c.type == "elif_clause")):
            if self.run(parts[0]):
                self._run_all(parts[1:])
                return True
        for clause in clauses:
            if clause.type == "else_clause":
                self._run_all(clause.named_children)
        return True

    def _run_all(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.run(node)

    def _run_for_statement(self, node: Node) -> bool:
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [
            word for child in node.children_by_field_name("value") for word in self.fields(child)
        ]
        if name is None or body is None:
            return True
        for value in values:
            self.variables[_text(name)] = value
            if not self._round(body):
                break
        return True

    def _round(self, body: Node) -> bool:
        """Follow the body of a loop once; return whether another round may follow."""
        self.budget.spend(steps=1, at=f"line {self._line(body)}")
        try:
            self._run_all(body.named_children)
        except _LeaveError as error:
            return str(error) == "continue"
        return True

    def _run_while_statement(self, node: Node) -> bool:
        """Follow a loop by its test of numbers; any other loop at most once."""
        condition, body = node.named_children[0], node.child_by_field_name("body")
        wanted = not node.children or node.children[0].type != "until"
        counts = condition.type == "test_command" and not self._depends(condition)
        while body is not None and self.run(condition) == wanted:
            if not (self._round(body) and counts):
                break
        if not counts:
            line, what = self._line(node), _text(node).splitlines()[0][:60]
            self.found.notes.append(f"line {line}: the loop {what!r} is followed once at most")
        return True

    def _depends(self, node: Node) -> bool:
        """Return whether a test depends on a value that only the machine knows."""
        names = (one for one in _below(node) if one.type in _SPLIT)
        return any(unknown_in(self.text(one)) for one in names)

    def _run_c_style_for_statement(self, node: Node) -> bool:
        parts = {one: node.child_by_field_name(one)
                 for one in ("initializer", "condition", "update", "body")}  # fmt: skip
        first, test, update, body = parts.values()
        if body is None:
            return True
        if (
            first is None or test is None or update is None
            or not (self._step(_text(first)) and self._number(_text(test)) is not None)
        ):  # fmt: skip
            line, what = self._line(node), _text(node).splitlines()[0][:60]
            self.found.notes.append(f"line {line}: the loop {what!r} is followed once")
            self._round(body)
            return True
        while self._number(_text(test)) and self._round(body):
            if not self._step(_text(update)):
                break
        return True

    def _run_postfix_expression(self, node: Node) -> bool:
        return self._counts(_text(node))

    def _counts(self, text: str) -> bool:
        """Follow an expression between ``((`` and ``))``; return whether it is known and not 0."""
        return self._step(text) or bool(self._number(text))

    _run_binary_expression = _run_unary_expression = _run_postfix_expression

    def _step(self, text: str) -> bool:
        """Follow ``i=0``, ``i++`` or ``i+=2``; return whether the value is known."""
        found = _STEP.fullmatch(text.strip())
        if found is None or not any(found.group(1, 3, 5)):
            return False
        before, name, sign, expression, after = found.groups()
        if expression is None:
            sign, expression = (before or after)[0] + "=", "1"
        number = self._number(expression if sign == "=" else f"{name} {sign[0]} ({expression})")
        self.variables[name] = unknown(name) if number is None else str(number)
        return number is not None

    def _run_case_statement(self, node: Node) -> bool:
        subject = node.child_by_field_name("value")
        value = "" if subject is None else self.tested(subject)
        for item in node.named_children:
            if item.type != "case_item":
                continue
            patterns = item.children_by_field_name("value")
            if any(self._fits(value, self.text(pattern)) for pattern in patterns):
                self._run_all(child for child in item.named_children if child not in patterns)
                break
        return True

    def _fits(self, text: str, pattern: str) -> bool:
        """Return whether a text has the form of a pattern of file names."""
        self.budget.spend(letters=len(text) * (1 + len(pattern) // 16))
        return fnmatch.fnmatchcase(text, pattern)

    def _run_redirected_statement(self, node: Node) -> bool:
        here = [child for child in node.named_children if child.type == "heredoc_redirect"]
        targets = [
            child for child in _below(node) if child.type == "file_redirect" and _is_output(child)
        ]
        if here and targets:
            names = self.fields(targets[-1].named_children[-1])
            body, start = _child(here[0], "heredoc_body"), _child(here[0], "heredoc_start")
            if names and body is not None and start is not None:
                is_literal = _text(start)[:1] in "'\"\\"
                text = _text(body) if is_literal else self._pieces(body)
                self.found.files[base_name(names[0])] = text
                return True
        if here and (body := _child(here[0], "heredoc_body")) is not None:
            start = _child(here[0], "heredoc_start")
            is_literal = start is not None and _text(start)[:1] in "'\"\\"
            self.input = _text(body) if is_literal else self._pieces(body)
        done = True
        for child in node.named_children:
            if not child.type.endswith("redirect"):
                done = self.run(child)
        self.input = ""
        return done

    def _run_test_command(self, node: Node) -> bool:
        inner = [child for child in node.named_children if child.type != "comment"]
        if node.children and node.children[0].type == "((":
            return self._counts(_text(node)[2:-2])
        return bool(inner) and all(self._holds(child) for child in inner)

    def _holds(self, node: Node) -> bool:
        """Return whether an expression between brackets holds; an unknown one does not."""
        if node.type == "parenthesized_expression":
            return self._holds(node.named_children[0])
        if node.type == "unary_expression":
            sign, operand = _text(node.children[0]), node.children[-1]
            if sign == "!":
                return not self._holds(operand)
            return self._unary(sign, self.tested(operand), node)
        if node.type == "binary_expression" and len(node.children) >= 3:
            left, sign, right = node.children[0], _text(node.children[1]), node.children[-1]
            if sign in ("&&", "-a"):
                return self._holds(left) and self._holds(right)
            if sign in ("||", "-o"):
                return self._holds(left) or self._holds(right)
            return self._compared(self.tested(left), sign, self.tested(right), node)
        return self.tested(node) != ""

    def _unary(self, sign: str, value: str, node: Node) -> bool:
        if sign == "-z":
            return value == ""
        if sign == "-n":
            return value != ""
        if sign == "-v":
            return value in self.variables
        self.found.notes.append(f"line {self._line(node)}: {_text(node)!r} is taken as false")
        return False

    def tested(self, node: Node) -> str:
        """Return the text that a test sees: unset variables are empty."""
        return _MARK.sub("", self.text(node))

    def _run_command(self, node: Node) -> bool:
        words: list[str] = []
        self.put_before = {}
        for child in node.children:
            if not child.is_named:
                words += [child.type] if child.type in ("==", "=~", "!=") else []
            elif child.type == "variable_assignment" and not words:
                self._run_variable_assignment(child)
                name = _text(child).partition("=")[0]
                self.put_before[name] = " ".join(_as_list(self.variables.get(name, "")))
            elif child.type == "command_name":
                words += self.fields(child.named_children[0])
            elif not child.type.endswith("redirect") and child.type != "comment":
                words += self.fields(child)
        here = _child(node, "herestring_redirect")
        if here is not None:
            self.input = self.text(here.named_children[-1])
        done = self._start(words, self._line(node)) if words else True
        if here is not None:
            self.input = ""
        return done

    def _start(self, words: list[str], line: int) -> bool:
        """Follow a command: a function, a script or text that a shell runs; else keep it."""
        name, rest = words[0], words[1:]
        if name in self.functions:
            return self._call(name, rest)
        if name in _TESTS:
            return self._plain_test(rest, line)
        if name == "set" and rest[:1] == ["--"]:
            self._set_arguments(rest[1:])
        elif name in ("break", "continue"):
            raise _LeaveError(name)
        elif name == "shift":
            self._shift(rest)
        elif name == "read":
            self._read(rest)
        elif name == "let":
            for word in rest:
                self._step(word)
        elif name in ("echo", "printf") and self.printed is not None:
            self.printed.append(_printed(["echo", *rest]) or unknown(name))
        elif name == "exit" and rest[:1] in ([], ["0"]):  # errors are not followed
            raise _StopError
        elif name == "eval":
            self.run_text(" ".join(rest), line - 1)
        elif name in ("source", "."):
            self._source(rest, line)
        elif name not in _SILENT:
            self._keep(words, line)
        return name != "false"

    def _call(self, name: str, arguments: list[str]) -> bool:
        self.budget.spend(values=len(self.variables))
        before = dict(self.variables)
        self._set_arguments(arguments)
        self.run(self.functions[name])
        for key in [key for key in self.variables if key.isdigit() or key in ("@", "*", "#")]:
            self.variables.pop(key)
            if key in before:
                self.variables[key] = before[key]
        return True

    def _set_arguments(self, arguments: list[str]) -> None:
        self.budget.spend(values=len(arguments))
        for number, argument in enumerate(arguments, 1):
            self.variables[str(number)] = argument
        self.variables["@"] = self.variables["*"] = list(arguments)
        self.variables["#"] = str(len(arguments))

    def _shift(self, words: list[str]) -> None:
        number = (whole_number(words[0]) if words else None) or 1
        self.budget.spend(values=len(self.variables))
        numbered = {place: value for key, value in self.variables.items()
                    if (place := whole_number(key)) is not None}  # fmt: skip
        for key in numbered:
            self.variables.pop(str(key), None)
        self.variables |= {str(key - number): value for key, value in numbered.items()
                           if key > number}  # fmt: skip
        if isinstance(rest := self.variables.get("@"), list):
            self.variables["@"] = self.variables["*"] = rest[number:]
            self.variables["#"] = str(len(rest[number:]))

    def _read(self, words: list[str]) -> None:
        """Give the text behind ``<<`` or ``<<<`` to the variables that ``read`` names."""
        self.budget.spend(letters=len(self.input) * (1 + len(words)))
        names: list[str] = []
        flags, takes = "", False
        for word in words:
            if word.startswith("-") and not names:
                flags += word[1:]
                takes = word[-1] in "dnNptui"
            elif takes:
                takes = False
            else:
                names.append(word)
        whole = self.input if "d" in flags else self.input.partition("\n")[0]
        divider = self.put_before.get("IFS") or None
        for number, name in enumerate(names):
            if not self.input:
                self.variables[name] = unknown(name)
            elif "a" in flags:
                self.variables[name] = whole.split(divider)
            else:
                parts = whole.split(divider, len(names) - 1) if len(names) > 1 else [whole]
                self.variables[name] = parts[number] if number < len(parts) else ""

    def _source(self, words: list[str], line: int) -> None:
        name = base_name(words[0]) if words else ""
        if name in self.others:
            self.run_text(self.others[name])
        elif not name.endswith(("activate", "bashrc", "profile", "conda.sh")):
            self.found.notes.append(f"line {line}: {as_written(name)} is not among the files")

    def _keep(self, words: list[str], line: int) -> None:
        """Keep a command; of ``bash -c TEXT`` the commands of the text, after its first words."""
        if (found := _text_of(words)) is not None:
            index, text = found
            first = len(self.found.commands)
            self.run_text(text, line - 1)
            for place in range(first, len(self.found.commands)):
                inner = self.found.commands[place]
                outer = (*words[:index], *inner.words)
                self.found.commands[place] = replace(inner, words=outer)
            return
        if self.input and base_name(words[0]) in _TAKE_TEXT:
            text, self.input = self.input, ""
            self.run_text(text, line)
            return
        written = {name: text for name, text in self.found.files.items() if name.endswith(SCRIPTS)}
        others = written | self.others
        called = next((word for word in words if base_name(word) in others), "")
        if called:
            before, self.others = self.others, {}
            files, self.found.files = self.found.files, {}
            self.run_text(others[base_name(called)])
            self.others, self.found.files = before, files | self.found.files
        names = sorted(self.exported & self.variables.keys())
        seen = {name: " ".join(_as_list(self.variables[name])) for name in names}
        self.budget.spend(letters=sum(map(len, seen.values())), values=len(words) + len(names))
        self.found.commands.append(Command(tuple(words), line, seen | self.put_before))

    def _plain_test(self, words: list[str], line: int) -> bool:
        if len(words) >= 3 and words[1] in (*_COMPARES, *_OF_TEXT):
            left, sign, right = (_MARK.sub("", word) for word in words[:3])
            return self._compared(left, sign, right, line)
        self.found.notes.append(f"line {line}: test {shlex.join(words)} is taken as false")
        return False

    def _compared(self, left: str, sign: str, right: str, place: Node | int) -> bool:
        """Return whether a comparison of a test holds."""
        if sign in ("=", "==", "!="):
            return self._fits(left, right) == (sign != "!=")
        if sign == "=~":
            if tries(right, left) <= _MOST_TRIES:
                try:
                    return re.search(right, left) is not None
                except (re.error, OverflowError, RecursionError):
                    return False
            line = place if isinstance(place, int) else self._line(place)
            what = f"{left[:30]!r} =~ {right[:30]!r}"
            self.found.notes.append(f"line {line}: {what} may take too long; it is taken as false")
            return False
        compare = _COMPARES.get(sign)
        if compare is None:
            return False
        if not sign.startswith("-"):
            return compare(left, right)
        try:
            return compare(int(left or 0), int(right or 0))
        except ValueError:
            return False

    # ------------------------------------------------------------------------------- words

    def text(self, node: Node) -> str:
        """Return the text of a word; several words are joined."""
        return " ".join(self.fields(node, splits=False))

    def fields(self, node: Node, *, splits: bool = True) -> list[str]:
        """Return the words that a word of the script expands to."""
        words = self._words(node, splits)
        self.budget.spend(letters=sum(map(len, words)), values=len(words))
        return words

    def _words(self, node: Node, splits: bool) -> list[str]:
        pieces = _JOINED.get(node.type)
        if pieces is not None:
            return self._joined(node, splits)
        one = self._one(node)
        if isinstance(one, list):
            if splits:
                return [word for value in one for word in _split(value)]
            return [" ".join(one)]
        if node.type in _SPLIT and splits:
            return _split(one)
        return [one]

    def _joined(self, node: Node, splits: bool) -> list[str]:
        """Return the words of adjacent parts: an array in them has several."""
        if node.type == "string" and len(node.named_children) == 1:
            one = self._one(node.named_children[0])
            if isinstance(one, list) and _text(node)[1:-1] == _text(node.named_children[0]):
                return list(one) if splits else [" ".join(one)]
        if node.type == "string":
            return [self._pieces(node)]
        words = [""]
        for child in node.children:
            parts = self.fields(child, splits=splits)
            if parts:
                words[-1] += parts[0]
                words += parts[1:]
        return words

    def _pieces(self, node: Node) -> str:
        """Return the text of a string or document: text between its parts is literal."""
        source = _bytes(node)
        start, text = 0, ""
        shift = int(node.start_byte)
        for child in node.children:
            if child.type in _LITERAL:
                continue
            blank = _blank(_text(child))
            text += _unescaped(source[start : int(child.start_byte) - shift + blank])
            value = self._one(child)
            part = " ".join(value) if isinstance(value, list) else value
            self.budget.spend(letters=len(part))
            text += part
            start = int(child.end_byte) - shift
        text += _unescaped(source[start:])
        is_quoted = node.type == "string"
        return text[1:-1] if is_quoted and text[:1] == text[-1:] == '"' else text.lstrip('"')

    def _one(self, node: Node) -> str | list[str]:
        """Return the value of a word with a single part."""
        kind, text = node.type, _text(node)
        text = text[_blank(text) :] if kind in _SPLIT else text
        if kind == "raw_string":
            return text[1:-1]
        if kind == "ansi_c_string":
            return text[2:-1].replace("\\n", "\n").replace("\\t", "\t")
        if kind == "simple_expansion":
            return self._variable(text[1:])
        if kind == "expansion":
            return self._expansion(node)
        if kind == "arithmetic_expansion" or text.startswith("$(("):
            number = self._number(text[3:-2] if text.startswith("$((") else text[2:-1])
            return unknown(text) if number is None else str(number)
        if kind == "command_substitution":
            return self._substituted(node)
        if kind in _JOINED:
            return self.text(node)
        return re.sub(r"\\\n", "", text) if "\\\n" in text else re.sub(r"\\(.)", r"\1", text)

    def _variable(self, name: str) -> str | list[str]:
        value = self.variables.get(name, [] if name in ("@", "*") else unknown(name))
        return unknown(name) if isinstance(value, dict) else value

    def _expansion(self, node: Node) -> str | list[str]:
        """Return the value of ``${...}``."""
        text = _after_blank(node)[2:-1]
        found = _EXPANSION.fullmatch(text)
        if found is None:
            return unknown(text)
        counts, name, index, sign, _ = found.groups()
        value, is_set = self._variable(name), name in self.variables
        table = self.variables.get(name)
        if isinstance(table, dict) and index in ("@", "*"):
            value = list(table.values())
        elif isinstance(table, dict) and index is not None:
            key = self._key(next(one for one in node.named_children if one.type == "subscript"))
            value, is_set = table.get(key, unknown(text)), key in table
        elif index is not None and index not in ("@", "*"):
            number, values = self._number(index), _as_list(value)
            known = number is not None and -len(values) <= number < len(values)
            value = values[number] if known and number is not None else unknown(text)
        elif index is None and isinstance(value, list) and name not in ("@", "*"):
            value = value[0] if value else ""
        if counts:
            return str(len(value)) if is_set else unknown(text)
        return self._defaulted(node, name, value, sign, is_set=is_set) if sign else value

    def _defaulted(
        self, node: Node, name: str, value: str | list[str], sign: str, *, is_set: bool
    ) -> str | list[str]:
        """Return a value after its default, its alternative or the removal of a pattern."""
        signs = [child for child in node.children if child.type == sign or child.type == sign[0]]
        after = signs[-1].end_byte if signs else node.start_byte
        parts = [child for child in node.named_children if child.start_byte >= after]
        other = "".join(self.text(part) for part in parts)
        is_there = is_set and (value not in ("", []) or ":" not in sign)
        if sign in (":-", "-"):
            return value if is_there else other
        if sign in (":=", "="):
            self.variables[name] = value = value if is_there else other
            return value
        if sign in (":+", "+"):
            return other if is_there else ""
        if sign in (":?", "?"):
            return value
        if isinstance(value, str) and not unknown_in(value) and sign in _CUTS:
            self.budget.spend(letters=len(value) ** 2 * (1 + len(other) // 16))
            return _CUTS[sign](value, other)
        return unknown(_after_blank(node)[2:-1])

    def _substituted(self, node: Node) -> str:
        """Return the output of a command: known for a few, and for functions that print words."""
        text = _after_blank(node)
        written = unknown(text[1:] if text.startswith("$") else text)
        if len(node.named_children) != 1 or node.named_children[0].type != "command":
            return written
        self.budget.spend(values=len(self.variables))
        inner = _Shell(Script(), {}, self.others, self.budget)
        inner.variables, inner.functions = dict(self.variables), self.functions
        parts = node.named_children[0].named_children
        named = (part.named_children[0] if part.type == "command_name" else part for part in parts)
        words = [word for part in named for word in inner.fields(part)]
        if words and words[0] in self.functions:
            inner.printed = []
            inner._call(words[0], words[1:])
            is_known = inner.printed and not inner.found.commands
            return "\n".join(inner.printed) if is_known else written
        known = _printed(words)
        return written if known is None else known

    def _number(self, text: str) -> int | None:
        """Return the value of an arithmetic expression; None: unknown."""

        def value(found: re.Match[str]) -> str:
            known = self.variables.get(found.group(1), "")
            text = known[0] if isinstance(known, list) and known else known
            return f"({text})" if isinstance(text, str) and text else "unknown"

        plain = re.sub(r"\$?\{?\b([A-Za-z_]\w*|(?<=\$)\d+)\b\}?", value, text.strip().strip("$"))
        self.budget.spend(letters=_PARSING * len(plain))
        return _result(plain)


def _result(expression: str) -> int | None:
    """Return the value of an expression of whole numbers; None: not such an expression."""
    try:
        return _arithmetic(ast.parse(expression.strip(), mode="eval").body)
    except (ValueError, SyntaxError, KeyError, ArithmeticError, RecursionError, MemoryError):
        return None  # the parser has no stack for expressions of thousands of levels


_PARSING = 16
"""Characters processed at the cost of parsing one."""
_ENTRY = re.compile(r"\[([^\]]*)\]=(.*)", re.S)
_STEP = re.compile(r"(\+\+|--)?([A-Za-z_]\w*)(?:([-+*]?=)(?!=)(.+)|(\+\+|--))?", re.S)
_TAKE_TEXT = ("bash", "sh", "zsh", "sbatch", "ssh")
"""Commands that run the text of their input."""
_ON_HOSTS = ("ssh", "pdsh", "clush")
_TEXTS = ("--command", "--wrap")
"""Options of job starters that take a command: those of xpk, gcloud and sbatch."""


def _text_of(words: Sequence[str]) -> tuple[int, str] | None:
    """Return the shell text that a command runs, and the number of words before it.

    The text of ``bash -c TEXT``, of ``ssh HOST TEXT``, or of an option that takes a command.
    """
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        is_shell = base_name(word) in ("bash", "sh", "zsh")
        if is_shell and len(rest) > 1 and re.fullmatch(r"-[a-z]*c", rest[0]):
            return index, rest[1]
        name, equals, value = word.partition("=")
        if name in _TEXTS and (equals or rest):
            return index, value if equals else rest[0]
    if base_name(words[0]) in _ON_HOSTS and len(words) > 2 and " " in words[-1]:
        return len(words) - 1, words[-1]
    return None


_EXPANSION = re.compile(
    r"(#?)([A-Za-z_]\w*|[0-9]+|[@*#])(?:\[([^\]]*)\])?(:?[-=+?]|%%?|##?|//?|\^\^?|,,?)?(.*)", re.S
)
_TRANSPARENT = ("program", "compound_statement", "subshell", "do_group", "declaration_command",
                "variable_assignments", "statement", "command_group")  # fmt: skip
_JOINED = dict.fromkeys(("string", "concatenation", "translated_string"), True)
_SPLIT = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")
_LITERAL = ('"', "string_content", "heredoc_content", "\n")
_SILENT = frozenset((
    "echo", "printf", "cd", "mkdir", "rm", "cp", "mv", "ls", "sleep", "wait", "export", "unset",
    "set", "trap", "module", "ulimit", "pip", "pip3", "apt-get", "true", "false",
    ":", "exit", "return", "tee", "cat", "grep", "sed", "awk", "head", "tail", "pkill", "kill",
    "chmod", "ln", "date",
    "hostname", "which", "local", "declare", "readonly", "git", "wandb",
    "huggingface-cli", "hf", "nvidia-smi", "rocm-smi", "pwd", "touch", "umask", "shopt",
    "pushd", "popd", "wget", "curl", "tar", "unzip", "dirname",
))  # fmt: skip
"""Commands that start no model."""
_TESTS = ("test", "[")


_COMPARES: dict[str, Callable[..., bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le,
    "-gt": operator.gt, "-ge": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_OF_TEXT = ("=", "==", "!=", "=~")
_CUTS: dict[str, Callable[[str, str], str]] = {
    "%": lambda text, pattern: _cut(text, pattern, range(len(text), -1, -1), is_end=True),
    "%%": lambda text, pattern: _cut(text, pattern, range(len(text) + 1), is_end=True),
    "#": lambda text, pattern: _cut(text, pattern, range(len(text) + 1), is_end=False),
    "##": lambda text, pattern: _cut(text, pattern, range(len(text), -1, -1), is_end=False),
    ",,": lambda text, _: text.lower(),
    "^^": lambda text, _: text.upper(),
}


def _cut(text: str, pattern: str, places: Iterable[int], *, is_end: bool) -> str:
    """Return a text without the part at its end or start that a pattern describes."""
    for place in places:
        part = text[place:] if is_end else text[:place]
        if fnmatch.fnmatchcase(part, pattern):
            return text[:place] if is_end else text[place:]
    return text


_MOST_TRIES = 1_000_000


def _quotient(a: int, b: int) -> int:
    """Return a / b cut towards zero, as shells do."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: _quotient, ast.Mod: lambda a, b: a - b * _quotient(a, b),
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.LShift: lambda a, b: a << (b & 63), ast.RShift: lambda a, b: a >> (b & 63),
}  # fmt: skip
_ORDERS: dict[type, Callable[[int, int], bool]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def _wrapped(value: int) -> int:
    return (int(value) + 2**63) % 2**64 - 2**63


def _arithmetic(node: ast.expr) -> int:
    """Return the value of an expression of whole numbers, in 64 bits as in shells."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return _wrapped(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_arithmetic(node.operand)
    if isinstance(node, ast.BinOp):
        apply = _OPERATORS[type(node.op)]
        return _wrapped(apply(_arithmetic(node.left), _arithmetic(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _arithmetic(node.left), _arithmetic(node.comparators[0])
        return int(_ORDERS[type(node.ops[0])](left, right))
    raise ValueError(ast.dump(node))


def _printed(words: list[str]) -> str | None:
    """Return the output of a command, for the few that print their arguments."""
    if not words or any(map(unknown_in, words)):
        return None
    if words[0] == "echo":
        return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
    if words[0] == "basename" and len(words) > 1:
        return base_name(words[1]).removesuffix(words[2] if len(words) > 2 else "\0")
    if words[0] == "expr":
        number = _result(" ".join(words[1:]))
        return None if number is None else str(number)
    return None


def _parsed(text: str) -> Node:
    import tree_sitter
    import tree_sitter_bash

    language = tree_sitter.Language(tree_sitter_bash.language())
    return tree_sitter.Parser(language).parse(text.encode("utf-8", "replace")).root_node


def _bytes(node: Node) -> bytes:
    return bytes(node.text or b"")


def _text(node: Node) -> str:
    return _bytes(node).decode("utf-8", "replace")


def _blank(text: str) -> int:
    """Return the length of the white space that the parser adds to an expansion in a string."""
    found = re.match(r"(?:\\\n|\s)*", text)
    return found.end() if found else 0


def _after_blank(node: Node) -> str:
    return _text(node)[_blank(_text(node)) :]


def _below(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        yield child
        yield from _below(child)


def _child(node: Node, kind: str) -> Node | None:
    return next((child for child in node.children if child.type == kind), None)


def _is_output(node: Node) -> bool:
    return any(child.type in (">", ">>", ">|") for child in node.children)


def _unescaped(source: bytes) -> str:
    text = source.decode("utf-8", "replace")
    return re.sub(r'\\([$`"\\])', r"\1", text.replace("\\\n", ""))


def _as_list(value: Value | None) -> list[str]:
    if isinstance(value, dict | list):
        return list(value.values() if isinstance(value, dict) else value)
    return [value] if value else []


def _split(value: str) -> list[str]:
    """Return the words of an expansion outside of quotes; a mark is never split."""
    return _WORD.findall(value)
