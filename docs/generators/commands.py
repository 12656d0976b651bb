"""A page for each command, from the table of options; the manual pages are the same pages."""

from __future__ import annotations

from collections.abc import Iterator

from generators.markdown import escaped, page, table
from meshwright.ask.questions import COMMANDS, FAMILIES
from meshwright.ask.record import WITH, Option, Question

FOLDER = "commands"
EXIT_STATUS = """## Exit status

0 fine, 2 bad input, 3 nothing fits or a run is late, 130 interrupted."""
EVERYWHERE = "````{option} --json\nPrint the result as JSON.\n````"
DETAIL = "````{option} --detail\nThe whole answer: every part, the ranking, the proof.\n````"


def pages() -> dict[str, str]:
    """Return the pages of all commands by path."""
    found = {path_of(name): command_page(name, entry) for name, entry in COMMANDS.items()}
    for family in FAMILIES:
        found[path_of(family)] = family_page(family)
    return found | {f"{FOLDER}/meshwright.md": program_page()}


def path_of(name: str) -> str:
    """Return the page of a command: ``show chip`` stands in ``show/chip.md``."""
    return f"{FOLDER}/{name.replace(' ', '/')}.md"


def manual_pages(author: str) -> list[tuple[str, str, str, list[str], int]]:
    """Return what Sphinx is to write as manual pages: one of the program, one for each command."""
    about = "plan a large model on a real cluster or wafer"
    found = [(f"reference/{FOLDER}/meshwright", "meshwright", about, [author], 1)]
    for name, command in COMMANDS.items():
        document = f"reference/{path_of(name).removesuffix('.md')}"
        title = f"meshwright-{name.replace(' ', '-')}"
        found.append((document, title, command.about(), [author], 1))
    return found


def program_page() -> str:
    """Return the page of the program itself, for the manual: its commands, a line each."""
    listed = "\n\n".join(
        f"`{name}`\n: {escaped(command.about())}" for name, command in COMMANDS.items()
    )
    parts = (
        "```text\nmeshwright [--version] COMMAND [options]\n```",
        "Plan a large model on a real cluster or wafer: the best parallel strategy, its price, and "
        "the proof.",
        "## Commands",
        listed,
        "`meshwright COMMAND --help`, and a manual page `meshwright-COMMAND` each.",
        EXIT_STATUS,
    )
    return "---\norphan: true\n---\n\n" + page("meshwright", *parts)


def command_page(name: str, question: type[Question]) -> str:
    """Return the page of one command."""
    about, shown = question.about(), [o for o in question.options.values() if not o.is_hidden]
    parts = [sentence(about), usage(name, question), f"```{{program}} meshwright {name}\n```"]
    if arguments := [option for option in shown if option.is_positional]:
        parts += ["## Arguments", *(described(option, question) for option in arguments)]
    listed = [option for option in shown if not (option.is_positional or option.is_rare)]
    extra = [DETAIL, EVERYWHERE] if question.has_detail else [EVERYWHERE]
    for group in dict.fromkeys(("", *(option.group for option in listed))):
        members = [described(option, question) for option in listed if option.group == group]
        parts += [f"## {sentence(group, stop='') or 'Options'}", *members]
        parts += [] if group else extra
    if rare := question.rare().values():
        told = f"Each is stated by `--{WITH} NAME=VALUE`, repeatable."
        parts += ["## Rarer options", told, *(described(option, question) for option in rare)]
    return page(name, *parts, EXIT_STATUS)


def sentence(text: str, stop: str = ".") -> str:
    """Return a help text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{stop}" if text else ""


def usage(name: str, question: type[Question]) -> str:
    """Return the shape of a call."""
    words = []
    for option in question.options.values():
        if option.is_positional:
            shown = option.metavar or option.name
            word = f"{shown}..." if option.takes else shown
            words.append(word if option.is_needed else f"[{word}]")
        elif option.is_needed:
            words.append(f"{option.flag} {option.metavar}")
    call = " ".join((f"meshwright {name}", *words, "[options]"))
    return f"```text\n{call}\n```"


def described(option: Option, question: type[Question]) -> str:
    """Return one option: how it is typed, what it does in the words of ``--help``, its default."""
    lines = [f"{escaped(option.help)}.", *facts(option, question)]
    return f"````{{option}} {typed(option)}\n{' '.join(lines)}\n````"


def typed(option: Option) -> str:
    """Return an option as it is typed."""
    if option.is_positional:
        return option.metavar or option.name
    if option.is_flag:
        return option.flag
    separator = "=" if option.is_rare else " "
    return f"{option.flag}{separator}{option.shown_value}" + ("..." * (option.takes == "words"))


def facts(option: Option, question: type[Question]) -> Iterator[str]:
    """Yield what holds of an option besides its help."""
    if option.is_needed and not option.is_positional:
        yield "Required."
    if option.takes == "again":
        yield "May be given again."
    if option.takes == "words" and not option.is_positional:
        yield "Takes one or more."
    if option.default is not None and not option.is_flag:
        yield f"Default: `{option.default}`."
    others = [
        f"`{other.flag}`" for other in question.options.values()
        if option.excludes and other.excludes == option.excludes and other is not option
    ]  # fmt: skip
    if others:
        yield f"Not together with {', '.join(others)}."


def family_page(family: str) -> str:
    """Return the page of commands that share their first word."""
    rows = [
        (f"[`{name}`]({path_of(name).removeprefix(f'{FOLDER}/')})", escaped(command.about()))
        for name, command in COMMANDS.items()
        if name.split()[0] == family
    ]
    return page(family, sentence(FAMILIES[family]), table(("command", "shows"), rows))
