"""The entry point: finds the command, parses and calls it, and prints its result.

A result reaches the user as a screen, as lines or as JSON; an error as a message and an exit
status; a long search as a progress bar. Only the module of the command that was called is
imported, so that ``--help`` stays instant.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, NoReturn, cast

from meshwright.ask.questions import COMMANDS, FAMILIES
from meshwright.ask.record import WITH, Question
from meshwright.base.errors import (
    InfeasibleError,
    MeshwrightError,
    UnknownNameError,
    UnlawfulError,
    UsageError,
    message_of,
    nearest,
)
from meshwright.base.units import printable

if TYPE_CHECKING:
    from rich.progress import Progress


BROKEN_PIPE, INTERRUPTED = 141, 130


class Parser(argparse.ArgumentParser):
    """A parser that raises its complaints, so that ``--json`` can carry them as well."""

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        raise UsageError(message)


GIVEN: list[str] = []
"""Words of the command that runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 fine, 2 bad input, 3 nothing fits."""
    words = as_loop(list(sys.argv[1:] if arguments is None else arguments))
    GIVEN[:] = words
    open_streams()
    try:
        try:
            return told(words)
        finally:
            sys.stdout.flush()
    except OSError as error:
        # Nobody reads, or the disk is full: the rest of the buffer goes nowhere, without a
        # complaint at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            os.dup2(nowhere, sys.stderr.fileno())
            return BROKEN_PIPE
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        return BAD_INPUT


def as_loop(words: list[str]) -> list[str]:
    """Return ``plan ... --loop ALGORITHM`` as the command of loops; other words as they are."""
    flag = next((word for word in words if word.partition("=")[0] == "--loop"), None)
    if flag is None or "plan" not in words:
        return words
    named = flag.replace("--loop", "--algorithm", 1)
    return [{"plan": "loop", flag: named}.get(word, word) for word in words]


def error_of_stream(error: Exception) -> bool:
    """Return whether an error came from printing: errors of files name the file."""
    if isinstance(error, BrokenPipeError):
        return True
    return isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename


def open_streams() -> None:
    """Let answers go nowhere where a stream is closed; escape letters that its encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # no file that is opened later may take its number
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def told(words: Sequence[str]) -> int:
    """Run one command; print its error, and return the exit status."""
    try:
        return run(words)
    except KeyboardInterrupt:
        wipe()
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except MemoryError:
        wipe()
        print("error: memory is too small for this question", file=sys.stderr)
        return BAD_INPUT
    except (MeshwrightError, OSError) as error:
        if error_of_stream(error):
            raise
        report_failure(error, as_json="--json" in words)
        return exit_status(error)


def run(words: Sequence[str]) -> int:
    """Parse the words and run the command they call."""
    parser = Parser(
        prog="meshwright",
        description="Plan a large model on a real cluster or wafer.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    name, called = add_commands(parser, words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        raise UsageError(about_unknown(unknown[0], called))
    if args.version:
        from meshwright import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        called.print_help()
        return 0
    del args.version
    if "help" in (getattr(args, WITH, None) or ()):
        rare = COMMANDS[name].rare()
        show([f"{word}={one.shown_value}\n    {one.help}" if not one.is_flag else
              f"{word}\n    {one.help}" for word, one in rare.items()],
             {word: one.help for word, one in rare.items()}, args.json)  # fmt: skip
        return 0
    asked = COMMANDS[name].of_command_line(args, name, COMMANDS)
    announce_code(asked)
    return function_of(name)(asked)


def announce_code(asked: Question) -> None:
    """Name the functions of Python that a command is about to run: a graph may be one of them."""
    named = [getattr(asked, "graph", None), *(getattr(asked, "files", None) or ())]
    texts = [text for text in named if isinstance(text, str) and ":" in text]
    if texts:
        from meshwright.catalog.graphs.programs import is_code

        for text in filter(is_code, texts):
            print(f"note: {text} is code; it runs now, with your rights", file=sys.stderr)


def function_of(name: str) -> Callable[[Any], int]:
    """Return the function of a command: ``plan`` is ``plan`` of ``cli.answers``."""
    modules = {"show": "show", "study": "study", "explore": "explore",
               "show completion": "completion"}  # fmt: skip
    module = modules.get(name) or modules.get(name.split()[0], "answers")
    found = getattr(import_module(f"meshwright.cli.{module}"), name.replace(" ", "_"))
    return cast(Callable[[Any], int], found)


def add_commands(
    parser: argparse.ArgumentParser, words: Sequence[str], family: str = ""
) -> tuple[str, argparse.ArgumentParser]:
    """Add the commands, and the options of the one called; return its name and its parser."""
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    name = words[position] if position < len(words) else ""
    table = members(family)
    if not family and name in MEANT and name not in table:
        raise UsageError(f"unknown command {name!r}; did you mean {MEANT[name]}?")
    if name and name not in table:
        raise UnknownNameError(f"{family} command".strip(), name, table)
    choices = parser.add_subparsers(metavar="COMMAND", title="commands")
    parsers = {
        key: choices.add_parser(
            key, help=text, description=f"{text[:1].upper()}{text[1:]}.", allow_abbrev=False
        )
        for key, text in table.items()
    }
    if not name:
        return family, parser
    if name in FAMILIES and not family:
        return add_commands(parsers[name], words[position + 1 :], name)
    whole = f"{family} {name}".strip()
    COMMANDS[whole].add_to(parsers[name])
    return whole, parsers[name]


def members(family: str) -> dict[str, str]:
    """Return the commands under a first word with their help; without one, all first words."""
    found: dict[str, str] = {}
    for whole, question in COMMANDS.items():
        first, _, second = whole.partition(" ")
        if family:
            if first == family:
                found[second] = question.about()
        else:
            found[first] = FAMILIES.get(first, question.about())
    return found


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a parser."""
    return [name for name in parser._option_string_actions if name.startswith("--")]


MEANT = {
    "train": "plan",
    "rl": "loop",
    "grpo": "loop",
    "ppo": "loop",
    "search": "plan",
    "list": "show",
    "graph": "map",
}
"""Commands that people look for under other names."""


def about_unknown(word: str, parser: argparse.ArgumentParser) -> str:
    """Return a hint for a word that no option or argument takes."""
    if word.startswith("-"):
        flag = word.split("=")[0]
        rare = flag.removeprefix("--").replace("-", "_")
        if any(rare in one.rare() for one in COMMANDS.values()):
            stated = word.removeprefix(flag)
            return f"unknown option {word!r}; did you mean --{WITH} {rare}{stated}?"
        others = [name for name, one in COMMANDS.items() if flag in one.flags()]
        known = f"it applies to {', '.join(others[:3])}" if others else ""
        return f"unknown option {word!r}; {known or nearest(flag, option_names(parser))}"
    from meshwright.ask.job_files import is_job_file

    names = option_names(parser)
    if "--on" in names and re.fullmatch(r"\d+x\w.*", word):
        return f"unexpected argument {word!r}; did you mean --on {word}?"
    if "--from" in names and is_job_file(word):
        return f"unexpected argument {word!r}; did you mean --from {word}?"
    return f"unexpected argument {word!r}"


BAD_INPUT = 2
NOTHING_FITS = 3


def show(lines: Iterable[str], data: object, as_json: bool, *, is_file: bool = False) -> None:
    """Print lines for a reader, with every character of a file, or data for a program."""
    wipe()
    if as_json:
        from meshwright.catalog.answer_file import json_text

        print(json_text(data, with_defaults=True))
    else:
        print(printable("\n".join(lines), is_whole=is_file))


def show_answer(
    answer: object, args: Any, *, after: str = "", data: object = None,
    detail: bool = False, **beside: Any,
) -> None:  # fmt: skip
    """Print an answer by its view, or as data for a program.

    Parameters
    ----------
    after
        Command that a user may ask next.
    data
        Data for a program; None: the answer itself.
    detail
        Whether all sections follow the first screen, as with ``--detail``.
    beside
        Parts that other rooms add to the view.
    """
    if args.json:
        show((), answer if data is None else data, as_json=True)
        return
    from meshwright.view.registry import page_of
    from meshwright.view.terminal import draw

    page = page_of(answer, **beside)
    wipe()
    draw(page, detail=detail or getattr(args, "detail", False), after=after)


def next_command(args: Any, *, is_placed: bool = False, launches_with: Sequence[str] = ()) -> str:
    """Return the next command after a plan: export or simulate its file, or write that first.

    Parameters
    ----------
    is_placed
        Whether the plan is placed on a grid of devices, which no framework launches today.
    launches_with
        Frameworks that can start it; where none does, the question is asked again for one.
    """
    if args.out is not None and is_placed:
        return f"meshwright simulate {args.out}; meshwright explain {args.out}"
    from meshwright.train.writing import target_for

    stated = str(getattr(args, "framework", None) or "")
    target = target_for(stated, launches_with)
    if args.out is not None and target:
        return f"meshwright export {args.out} {target}; meshwright explain {args.out}"
    if is_placed or target or stated or not hasattr(args, "framework"):
        return command_line() + ("" if args.out else " --out plan.json")
    return command_line() + " --framework megatron" + ("" if args.out else " --out plan.json")


def picture_command(args: Any, file: str, *, fits: bool = True) -> str:
    """Return the next command after an answer with a picture: the picture, or the whole answer."""
    return command_line() + (f" --picture {file}" if fits and not args.picture else " --detail")


def question_line(args: Question) -> str:
    """Return the plan command of the same question, without the given strategy."""
    from meshwright.ask.questions import Fixed, Plan

    kept = Plan.options.keys() - Fixed.options.keys() - {"out", "report", "force"}
    return Plan.written("plan", {k: value for k, value in args.stated.items() if k in kept})


def command_line() -> str:
    """Return the command line as given, except for the options of the screen."""
    import shlex

    return " ".join(["meshwright", *(shlex.quote(word) for word in GIVEN
                                     if word not in ("--detail", "--json"))])  # fmt: skip


def exit_status(error: Exception) -> int:
    """Return 3 where there is no plan to recommend, 2 for any other complaint."""
    return NOTHING_FITS if isinstance(error, InfeasibleError | UnlawfulError) else BAD_INPUT


def report_failure(error: Exception, *, as_json: bool) -> None:
    """Print an error for a person, at the width of a terminal, or for a program."""
    wipe()
    if as_json:
        from meshwright.show.failure import failure

        show((), failure(error), as_json=True)
        return
    lines = printable(f"error: {message_of(error)}{_where_all_are(error)}").splitlines()
    text = "\n".join(line if len(line) < 1500 else f"{line[:1500]}..." for line in lines)
    if sys.stderr.isatty():
        import textwrap

        from meshwright.view.terminal import screen_width

        width = screen_width(sys.stderr)
        text = "\n".join(
            textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
            for line in text.splitlines()
        )
    print(text, file=sys.stderr)


def _where_all_are(error: Exception) -> str:
    """Return the command that lists all names, where the message is too short for them."""
    if not isinstance(error, UnknownNameError) or not str(error).endswith(", ..."):
        return ""
    return f" (all: meshwright show {error.kind})" if f"show {error.kind}" in COMMANDS else ""


FIRST_S, NEXT_S = 2.0, 0.5
"""Delay of the first bar; interval of its updates [s]."""


class ProgressBar:
    """A bar, or a spinner where the total is not known; wiped before a result is printed."""

    shown: Progress | None = None
    """The bar on the terminal."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.on_terminal = sys.stderr.isatty()

    def update(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show the progress, where an update is due."""
        now = time.monotonic()
        if not self.on_terminal or now - self.started < FIRST_S or now - self.last < NEXT_S:
            return
        self.last = now
        progress = ProgressBar.shown or _start()
        ProgressBar.shown = progress
        progress.update(progress.task_ids[0], description=text, completed=done or 0, total=total)
        progress.refresh()


def _start() -> Progress:
    """Return a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(),
        console=Console(stderr=True), transient=True, auto_refresh=False,
    )  # fmt: skip
    progress.add_task("", total=None)
    progress.start()
    return progress


def wipe() -> None:
    """Remove the bar from the terminal, where one is shown."""
    if ProgressBar.shown is not None:
        ProgressBar.shown.stop()
        ProgressBar.shown = None


class SearchProgress(ProgressBar):
    """Progress of a search over strategies."""

    def __call__(self, counts: Any, best: Any, left_s: float) -> None:
        """Show the number of priced plans, the best, and the bound."""
        found = f"{best.times_s[0]:.3g} s" if len(best.times_s) else "none"
        self.update(
            f"{counts.priced:,} priced, best {found}, bound {left_s:.3g} s; Ctrl-C: best so far"
        )


class Counter(ProgressBar):
    """Progress of a known number of things."""

    def __init__(self, things: str, note: str = "") -> None:
        super().__init__()
        self.things, self.note = things, note
        self.first: tuple[float, int] | None = None

    def __call__(self, done: int, number: int) -> None:
        """Show the number of things that are done, and the time that the others will take."""
        now = time.monotonic()
        began, before = self.first = self.first or (now, done)
        text = f"{done:,} of {number:,} {self.things}"
        if before < done < number:
            left_s = (now - began) * (number - done) / (done - before)
            text += f", {left_s / 60:.0f} min left" if left_s >= 60 else f", {left_s:.0f} s left"
        self.update(text + self.note, done, number)
