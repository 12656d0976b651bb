"""A question is one typed record: a field is an option of a command and a keyword in Python.

    class Training(Question):
        seq: Tokens | None = option("tokens of a sequence", "TOKENS")

From this line come ``--seq`` with its help, the keyword ``seq`` of the verb with its type, a field
of YAML files and sweeps, and a field of the explorer's form. Values are read once, when they enter
(:meth:`Question.ask`), and travel as numbers. Standard library only: ``--help`` imports no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from meshwright.ask.kinds import Kind, kind_of
from meshwright.ask.reading import Reading
from meshwright.base.errors import Fault, MeshwrightError, SpecError, UnknownNameError, nearest

if TYPE_CHECKING:
    import argparse
    import inspect
    from pathlib import Path

Other = TypeVar("Other", bound="Question")
WITH = "with"
"""The option of a command line that states rarer ones: ``--with NAME=VALUE``."""


class Option:
    """One field of a question; :func:`option` and :func:`argument` make it."""

    name = ""
    """Name in Python: ``global_batch`` is ``--global-batch``."""
    annotation: Any = None

    def __init__(self, help: str, metavar: str, default: Any, **more: Any) -> None:
        self.help, self.metavar, self.default = help, metavar, default
        self.group: str = more.pop("group", "")
        """Title of its section in the help."""
        self.excludes: str = more.pop("excludes", "")
        """Group of options that exclude each other."""
        self.target: str = more.pop("target", "")
        """Name in the search, where that differs."""
        self.field: str | None = more.pop("field", None)
        """Field of a workload that it states, such as ``software.dropout``; None: of none."""
        self.takes: str = more.pop("takes", "")
        """``words`` (one or more), ``again`` (may be given again and again); else one value."""
        self.writes: tuple[str, ...] | None = more.pop("writes", None)
        """Suffixes of the file that is written there, () any; None: nothing is."""
        self.is_resumed: bool = more.pop("is_resumed", False)
        """Whether such a file is added to where it is there."""
        self.is_positional: bool = more.pop("is_positional", False)
        self.is_needed: bool = more.pop("is_needed", False)
        self.is_rare: bool = more.pop("is_rare", False)
        """Whether a command line states it by ``--with``."""
        self.is_hidden: bool = more.pop("is_hidden", False)
        """Whether only files that start a job state it."""
        assert not more, more

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.target = self.target or name

    def but(self, **changes: Any) -> Option:
        """Return the option with some of its settings changed."""
        made = Option.__new__(Option)
        made.__dict__.update({k: v for k, v in vars(self).items() if k != "kind"} | changes)
        return made

    @cached_property
    def kind(self) -> Kind:
        """The kind of its value."""
        return kind_of(self.annotation)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it takes, where they are few."""
        return self.kind.choices

    @property
    def is_flag(self) -> bool:
        """Whether it is given without a value."""
        return self.annotation is bool

    @property
    def word(self) -> str:
        """Its name as a word: a Python keyword has no trailing ``_``."""
        return self.name.rstrip("_")

    @property
    def flag(self) -> str:
        """The option as typed: ``--global-batch``, ``MODEL``, ``--with dropout``."""
        if self.is_positional:
            return self.name.upper()
        return f"--{WITH} {self.word}" if self.is_rare else "--" + self.word.replace("_", "-")

    @property
    def shown_value(self) -> str:
        """The value in the help: its choices, or what it is."""
        return "|".join(self.choices) or self.metavar or self.name.upper()

    @property
    def type_in_python(self) -> str:
        """The type for the docstring of a verb."""
        found = self.kind.name
        if self.takes and "several" not in found:
            found = f"{found}, or several"
        if self.default is not None and not self.is_flag:
            return f"{found}, default {self.default!r}"
        return found if self.is_needed or self.is_flag else f"{found}, optional"

    def read(self, given: Any) -> Any:
        """Return the value of text, a number, a list of them, or a declaration.

        Raises
        ------
        SpecError
            It is no such value; the fault names the option.
        """
        if self.is_hidden:
            return given
        if self.takes == "again" and isinstance(given, Mapping):
            given = [f"{key}={entry}" for key, entry in given.items()]
        value = _plain(self, given)
        if not self.takes:
            return value if _is_declared(value) else self.kind.read(self.flag, value)
        entries = value if isinstance(value, tuple) else (value,)
        if self.kind.is_list:
            return entries
        if self.takes == "words":
            return self.kind.read(self.flag, " ".join(map(str, entries)))
        return self.kind.read(self.flag, entries)

    def add_to(self, place: argparse._ActionsContainer) -> None:
        """Declare the option for a command line."""
        usual = f" ({self.default})" if isinstance(self.default, int) and self.default else ""
        about = self.help.replace("%", "%%") + usual
        if self.is_positional:
            shown: dict[str, Any] = {"metavar": self.metavar} if self.metavar else {}
            nargs = "+" if self.takes else None if self.is_needed else "?"
            place.add_argument(self.name, nargs=nargs, help=about, **shown)
            return
        settings: dict[str, Any] = {"help": about, "dest": self.name, "default": None}
        if self.is_flag:
            settings["action"] = "store_true"
        else:
            settings["metavar"] = self.shown_value
            settings |= {"words": {"nargs": "+"}, "again": {"action": "append"}, "": {}}[self.takes]
        place.add_argument(self.flag, required=self.is_needed, **settings)


def option(help: str, metavar: str = "", default: Any = None, **more: Any) -> Any:
    """Return a field that is an option; a flag defaults to False."""
    return Option(help, metavar, default, **more)


def argument(help: str, metavar: str = "", **more: Any) -> Any:
    """Return a field that is given by its place."""
    return Option(help, metavar, None, is_positional=True, **more)


class Question:
    """The question of a verb. A subclass inherits the options of all its bases, in their order."""

    options: ClassVar[Mapping[str, Option]] = {}
    leads: ClassVar[tuple[str, ...]] = ()
    """Options of a beginner, which stand first."""
    rarely: ClassVar[tuple[str, ...]] = ()
    """Inherited options that are rare here."""
    comes_last: ClassVar[bool] = False
    """Whether its options stand below those of a subclass."""
    has_detail: ClassVar[bool] = False
    """Whether its screen has more to show under ``--detail``."""
    collects: ClassVar[bool] = False
    """Whether its verb raises complaints about values, together with its own."""
    stated: Mapping[str, Any] = {}
    """The options that were given, each as it was given."""
    errors: tuple[MeshwrightError, ...] = ()
    """Complaints about values, which :meth:`reading` hands on."""
    json: bool = False
    detail: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        found: dict[str, Option] = {}
        bases = [base for base in cls.__bases__ if issubclass(base, Question)]
        first = [base for base in bases if "comes_last" not in vars(base)]
        for base in first:
            found |= base.options
        annotations = cls.__annotations__
        for name, entry in list(vars(cls).items()):
            if isinstance(entry, Option):
                if name in annotations:
                    entry.annotation = annotations[name]
                if entry.is_flag:
                    entry.default = False
                found[name] = entry
                setattr(cls, name, entry.default)
        for base in bases:
            found |= {k: v for k, v in base.options.items() if k not in found}
        for name in cls.rarely:
            found[name] = found[name].but(is_rare=True)
        cls.options = {name: found[name] for name in (*cls.leads, *found) if name in found}

    @classmethod
    def about(cls) -> str:
        """Return the purpose of the command, for the help: the first line of the docstring."""
        text = (cls.__doc__ or "").partition("\n")[0].rstrip(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]

    @classmethod
    def ask(cls, given: Mapping[str, Any], *, verb: str = "") -> Self:
        """Return the question that keywords, a file, a form or a command line state.

        Complaints about values are kept where the verb raises them with its own.

        Raises
        ------
        UnknownNameError
            An option that the question does not have, with the nearest names.
        SpecError
            Values that are missing or wrong.
        """
        for name in given:
            if name not in cls.options:
                raise UnknownNameError(f"option of {verb or cls.__name__.lower()}", name,
                                       cls.options)  # fmt: skip
        asked = cls().but(**given)
        reading = asked.reading()
        excluded: dict[str, str] = {}
        for name, entry in cls.options.items():
            if name not in asked.stated or not entry.excludes:
                continue
            other = excluded.setdefault(entry.excludes, name)
            if other != name:
                reading.fault(entry.flag, f"not together with {cls.options[other].flag}")
        for name, entry in cls.options.items():
            if entry.is_needed and name not in asked.stated:
                reading.fault(name, "is needed")
        files = {
            name: reading.value(asked._output_file, name) for name, entry in cls.options.items()
            if entry.writes is not None and getattr(asked, name) is not None
        }  # fmt: skip
        if not cls.collects:
            reading.done()
        return asked._of(**files, errors=tuple(reading.errors))

    def _output_file(self, name: str) -> Path | str:
        """Return the file that an option names, checked before the work starts.

        The address of another place stays as it is. Else its folder is there and may be written
        to, its name ends as it should, and nothing is in the way; see
        :func:`meshwright.base.files.in_the_way`.
        """
        from pathlib import Path

        from meshwright.base.files import in_the_way

        entry, text = self.options[name], str(getattr(self, name))
        if entry.is_resumed and "://" in text:
            return text
        if not text or text.endswith(os.sep):
            raise SpecError(Fault(entry.flag, f"{text!r} names no file"))
        path = Path(text)
        folder, suffixes = path.parent, entry.writes
        if not folder.is_dir():
            raise SpecError(Fault(entry.flag, f"there is no folder {str(folder)!r}"))
        if not os.access(folder, os.W_OK):
            raise SpecError(Fault(entry.flag, f"the folder {str(folder)!r} cannot be written to"))
        force = bool(getattr(self, "force", False))
        if fault := in_the_way(path, force=force, is_resumed=entry.is_resumed):
            raise SpecError(Fault(entry.flag, f"{text!r} {fault.message}", fault.fix))
        named = {other: value for other in self.options
                 if other != name and isinstance(value := getattr(self, other), str)
                 and value.isprintable()}  # fmt: skip
        if same := [o for o, value in named.items() if Path(value).resolve() == path.resolve()]:
            message = f"{text!r} is {self.flag(same[0])} too"
            raise SpecError(Fault(entry.flag, message, "another name"))
        if suffixes and path.suffix.lower() not in suffixes:
            fix = f"{path.stem}{suffixes[0]}"
            raise SpecError(Fault(entry.flag, f"{text!r} does not end in {suffixes[0]}", fix))
        return path

    def but(self, **given: Any) -> Self:
        """Return the question with other values, read like the first ones; None: not stated."""
        reading, values = self.reading(), {}
        stated = dict(self.stated)
        for name, value in given.items():
            entry = self.options[name]
            is_stated = value is not None and not (entry.is_flag and value is False)
            stated.pop(name, None)
            values[name] = entry.default
            if is_stated:
                stated[name], values[name] = value, reading.value(entry.read, value)
        return self._of(**values, stated=stated, errors=tuple(reading.errors))

    def to(self, question: type[Other]) -> Other:
        """Return another question with the values of this one that it takes."""
        values = {name: getattr(self, name) for name in question.options if name in self.options}
        stated = {name: value for name, value in self.stated.items() if name in values}
        return question()._of(**values, stated=stated, errors=self.errors)

    def _of(self, **values: Any) -> Self:
        made = type(self)()
        made.__dict__.update(vars(self) | values)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a question is frozen: but({name}=...) returns another one")

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={getattr(self, n)!r}" for n in self.options if n in self.stated)
        return f"{type(self).__name__}({values})"

    def reading(self) -> Reading:
        """Return a reading that starts with the complaints about values."""
        return Reading(self.errors)

    def flag(self, name: str) -> str:
        """Return an option as it is typed."""
        return self.options[name].flag

    def refuse_idle(self, reading: Reading, names: Iterable[str], why: str) -> None:
        """Keep a complaint for each given option that would change nothing."""
        for name in names:
            if name in self.stated:
                reading.fault(self.flag(name), why)

    # ------------------------------------------------------------------------ command line, Python

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the options for a command line, and those of every screen."""
        places: dict[str, argparse._ActionsContainer] = {"": parser}
        for entry in cls.options.values():
            if not (entry.is_rare or entry.is_hidden):
                if entry.group not in places:
                    places[entry.group] = parser.add_argument_group(entry.group)
                entry.add_to(places[entry.group])
        if rare := cls.rare():
            text = f"a rarer option, repeatable ('help' describes them): {', '.join(rare)}"
            parser.add_argument(f"--{WITH}", metavar="NAME=VALUE", action="append", help=text)
        if cls.has_detail:
            text = "print the whole answer: every part, the ranking, the proof"
            parser.add_argument("--detail", action="store_true", help=text)
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    @classmethod
    def flags(cls) -> set[str]:
        """Return its options as they are typed."""
        return {entry.flag for entry in cls.options.values() if not entry.is_hidden}

    @classmethod
    def rare(cls) -> dict[str, Option]:
        """Return the options that ``--with`` states, by their words."""
        return {one.word: one for one in cls.options.values() if one.is_rare and not one.is_hidden}

    @classmethod
    def of_command_line(
        cls, args: argparse.Namespace, verb: str, beside: Mapping[str, type[Question]]
    ) -> Self:
        """Return the question of a parsed command line, beside those of other commands.

        Raises
        ------
        SpecError
            Where ``--with`` names no option, or states none as it should.
        """
        values = dict(vars(args))
        shown = {name: bool(values.pop(name, False)) for name in ("json", "detail")}
        rare, faults = cls.rare(), []
        for text in values.pop(WITH, None) or ():
            name, equals, value = text.partition("=")
            entry = rare.get(name.replace("-", "_"))
            if entry is None:
                others = [one for one, question in beside.items() if name in question.rare()]
                fix = f"it applies to {', '.join(others[:3])}" if others else nearest(name, rare)
                faults.append(Fault(f"--{WITH}", f"{name!r} is not an option", fix))
            elif not equals and not entry.is_flag:
                faults.append(Fault(entry.flag, "needs a value", f"{name}={entry.shown_value}"))
            elif entry.is_flag:
                values[entry.name] = _is_on(entry, value) if equals else True
            else:
                values[entry.name] = [value] if entry.takes else value
        if faults:
            raise SpecError(faults)
        known = {name: value for name, value in values.items() if name in cls.options}
        return cls.ask(known, verb=verb)._of(**shown)

    @classmethod
    def written(cls, verb: str, stated: Mapping[str, Any]) -> str:
        """Return the command line that states some options, each as it was given."""
        import shlex

        words = ["meshwright", verb]
        for name, given in stated.items():
            entry = cls.options[name]
            values = [str(value) for value in (given if entry.takes else (given,))]
            if entry.is_rare:
                values = [entry.word] if entry.is_flag else [f"{entry.word}={v}" for v in values]
            lead = [f"--{WITH}"] if entry.is_rare else [entry.flag]
            if entry.is_positional:
                words += values
            elif entry.is_rare or entry.takes == "again":
                words += [word for value in values for word in (*lead, value)]
            else:
                words += lead if entry.is_flag else [*lead, *values]
        return shlex.join(words)

    @classmethod
    def signature(cls) -> inspect.Signature:
        """Return the signature of its verb in Python."""
        import inspect

        kinds = inspect.Parameter
        shown = [one for one in cls.options.values() if not one.is_hidden]
        return inspect.Signature([
            kinds(
                one.name, kinds.POSITIONAL_OR_KEYWORD if one.is_positional else kinds.KEYWORD_ONLY,
                default=kinds.empty if one.is_positional and one.is_needed else one.default,
                annotation=_Shown(one.kind.name),
            )
            for one in sorted(shown, key=lambda one: not one.is_positional)
        ])  # fmt: skip

    @classmethod
    def docstring(cls, answer: str, returned: str) -> str:
        """Return the docstring of its verb in Python.

        Parameters
        ----------
        answer
            Docstring of the answer; its first line names the returned value.
        returned
            Type of the returned value.
        """
        about = cls.about()
        lines = [f"{about[:1].upper()}{about[1:]}.", "", "Parameters", "----------"]
        for one in cls.options.values():
            if not one.is_hidden:
                lines += [f"{one.name} : {one.type_in_python}", f"    {one.help}"]
        told = answer.partition("\n")[0].removeprefix("Return ")
        lines += ["", "Returns", "-------", returned, f"    {told[:1].upper()}{told[1:]}"]
        return "\n".join(lines) + "\n"


def like(question: type[Question], name: str, **changes: Any) -> Any:
    """Return the field of another question, with some of its settings changed."""
    return question.options[name].but(**changes)


class _Shown:
    """A type as a signature shows it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _is_on(entry: Option, text: str) -> bool:
    if text not in ("on", "off"):
        raise SpecError(Fault(entry.flag, f"found {text!r}", "on or off"))
    return text == "on"


def _is_declared(value: Any) -> bool:
    """Return whether a value is a declaration, a plan or another object of this package."""
    is_plain = isinstance(value, str | Number | tuple)
    return not is_plain and any(b.__module__.startswith("meshwright.") for b in type(value).__mro__)


def _plain(entry: Option, value: Any) -> Any:
    """Return a value as text, a number, a tuple of them, or a declaration."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | Number):
        return value
    if isinstance(value, list | tuple | range | set | frozenset):
        return tuple(_plain(entry, one) for one in value)
    if hasattr(value, "tolist"):
        return _plain(entry, value.tolist())
    if entry.kind.is_declared and _is_declared(value):
        return value
    expected = "text, a number or a list of them"
    raise SpecError(Fault(entry.name, f"found a {type(value).__name__}, expected {expected}"))
