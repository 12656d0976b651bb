"""A page for each command, from the table of options; the manual pages are the same pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from generators.markdown import escaped, page, table
from meshwright.cli.main import FAMILIES, command_table
from meshwright.options.table import Command, Option

FOLDER = "commands"
EXIT_STATUS = """## Exit status

0 fine, 2 bad input, 3 nothing fits or a run is late, 130 interrupted."""
EVERYWHERE = Option("json", "print the result as JSON", kind="flag")
DETAIL = Option("detail", "the whole answer: every part, the ranking, the proof", kind="flag")


def pages() -> dict[str, str]:
    """Return the pages of all commands by path."""
    found = {path_of(name): command_page(name, entry) for name, entry in command_table().items()}
    for family in FAMILIES:
        found[path_of(family)] = family_page(family)
    return found


def path_of(name: str) -> str:
    """Return the page of a command: ``show chip`` stands in ``show/chip.md``."""
    return f"{FOLDER}/{name.replace(' ', '/')}.md"


def manual_pages(author: str) -> list[tuple[str, str, str, list[str], int]]:
    """Return what Sphinx is to write as manual pages: one of the program, one for each command."""
    about = "plan a large model on a real cluster or wafer"
    found = [("reference/commands", "meshwright", about, [author], 1)]
    for name, command in command_table().items():
        document = f"reference/{path_of(name).removesuffix('.md')}"
        found.append((document, f"meshwright-{name.replace(' ', '-')}", command.help, [author], 1))
    return found


def command_page(name: str, command: Command) -> str:
    """Return the page of one command."""
    parts = [sentence(command.help), usage(name, command), f"```{{program}} meshwright {name}\n```"]
    shown = [option for option in command.options if not option.is_hidden]
    extra = (DETAIL, EVERYWHERE) if command.has_detail else (EVERYWHERE,)
    if arguments := [option for option in shown if option.is_positional]:
        parts += ["## Arguments", *(described(option, command) for option in arguments)]
    for group in dict.fromkeys(option.group for option in shown if not option.is_positional):
        title = sentence(group, stop="") or "Options"
        members = [o for o in shown if not o.is_positional and o.group == group]
        members += extra if not group else ()
        parts += [f"## {title}", *(described(option, command) for option in members)]
    if not any(not option.group and not option.is_positional for option in shown):
        parts += ["## Options", *(described(option, command) for option in extra)]
    return page(name, *parts, EXIT_STATUS)


def sentence(text: str, stop: str = ".") -> str:
    """Return a help text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{stop}" if text else ""


def usage(name: str, command: Command) -> str:
    """Return the shape of a call."""
    words = []
    for option in command.options:
        if option.is_positional:
            shown = option.metavar or option.target
            word = f"{shown}..." if option.kind == "several" else shown
            words.append(word if option.kind != "argument" else f"[{word}]")
    words += [f"{option.flag} {option.metavar}" for option in command.options if option.is_required]
    call = " ".join((f"meshwright {name}", *words, "[options]"))
    return f"```text\n{call}\n```"


def described(option: Option, command: Command) -> str:
    """Return one option: how it is typed, what it does, what it may be."""
    names = {word for other in command.options for word in (other.name, *other.choices)}
    starts_with_name = re.split(r"\W", option.help)[0] in names
    about = escaped(option.help)
    lines = [f"{about}." if starts_with_name else sentence(about), *facts(option, command)]
    return f"````{{option}} {typed(option)}\n{' '.join(lines)}\n````"


def typed(option: Option) -> str:
    """Return an option as it is typed."""
    if option.is_positional:
        return option.metavar or option.target
    if option.kind == "flag":
        return option.flag
    value = "|".join(option.choices) or option.metavar or option.target.upper()
    return f"{option.flag} {value}" + ("..." if option.kind == "values" else "")


def facts(option: Option, command: Command) -> Iterator[str]:
    """Yield what holds of an option besides its help."""
    if option.is_required:
        yield "Required."
    if option.kind == "again":
        yield "May be given again."
    if option.kind == "values":
        yield "Takes one or more."
    if option.default is not None and option.kind != "flag":
        yield f"Default: `{option.default}`."
    others = [
        f"`{other.flag}`" for other in command.options
        if option.excludes and other.excludes == option.excludes and other is not option
    ]  # fmt: skip
    if others:
        yield f"Not together with {', '.join(others)}."


def family_page(family: str) -> str:
    """Return the page of commands that share their first word."""
    rows = [
        (f"[`{name}`]({path_of(name).removeprefix(f'{FOLDER}/')})", escaped(command.help))
        for name, command in command_table().items()
        if name.split()[0] == family
    ]
    return page(family, sentence(FAMILIES[family]), table(("command", "shows"), rows))
