"""Values of options: each is read by itself, and all faults are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from meshwright.base.errors import Fault, MeshwrightError, SpecError, nearest

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

LARGEST = 10**12
"""No count of tokens, sequences or devices is larger."""


class Reading:
    """Options that are read one after another; complaints are kept until :meth:`done`."""

    def __init__(self) -> None:
        self.errors: list[MeshwrightError] = []

    def value(
        self, read: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Return what ``read`` returns; where it complains, nothing to be used before ``done``."""
        try:
            return read(*args, **kwargs)
        except MeshwrightError as error:
            self.errors.append(error)
            return cast(Value, None)

    def fault(self, path: str, message: str, fix: str = "") -> None:
        """Keep a complaint."""
        self.errors.append(SpecError(Fault(path, message, fix)))

    def done(self) -> None:
        """Raise what was kept: one complaint as it is, several as the faults of one error."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise SpecError([fault for error in self.errors for fault in faults_of(error)])


def faults_of(error: MeshwrightError) -> tuple[Fault, ...]:
    """Return the faults of an error; a file goes before the path of its field."""
    if not isinstance(error, SpecError):
        return (Fault("", str(error)),)
    if not error.origin:
        return error.faults
    return tuple(
        Fault(": ".join(filter(None, (error.origin, f.path))), f.message, f.fix)
        for f in error.faults
    )


def needed(
    option: str, given: object, read: Callable[[str], Value], kind: type[Value] | None = None
) -> Value:
    """Return what ``read`` makes of an option that must be there; a declaration stays as it is.

    Parameters
    ----------
    kind
        Of the declaration that Python may pass instead of a name.
    """
    if given is None:
        raise SpecError(Fault(option, "is needed"))
    if isinstance(given, str):
        return read(given)
    if kind is not None and isinstance(given, kind):
        return given
    expected = "a name or a file" + (f" or a {kind.__name__}" if kind else "")
    raise SpecError(Fault(option, f"found a {type(given).__name__}, expected {expected}"))


def whole_number(option: str, text: str, *, kilo: int = 1000) -> int:
    """Return a positive whole number; ``k`` multiplies it."""
    digits, factor = (text[:-1], kilo) if text[-1:] in ("k", "K") else (text, 1)
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 15
    number = int(digits) * factor if is_number else 0
    if not 1 <= number <= LARGEST:
        message = f"found {text!r}, expected a whole number above 0"
        raise SpecError(Fault(option, message, f"such as {'4096 or 4k' if kilo == 1024 else '8'}"))
    return number


def decimal_number(option: str, text: str, *, least: float) -> float:
    """Return a number that is at least ``least``."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= LARGEST:
        raise SpecError(Fault(option, f"found {text!r}, expected a number of at least {least:g}"))
    return number


def quantity(option: str, text: str, dimension: str) -> float:
    """Return a quantity above 0, such as ``15T`` tokens or ``50 ms``."""
    from meshwright.base.units import parse_quantity

    try:
        value = parse_quantity(text, dimension)
    except ValueError as error:
        raise SpecError(Fault(option, str(error))) from error
    if not 0 < value < float("inf"):
        bound = "less" if value > 0 else "more than 0"
        raise SpecError(Fault(option, f"found {text!r}, expected {bound}"))
    return value


def one_of(option: str, text: str, values: Iterable[str]) -> str:
    """Return a text that is one of the values."""
    names = list(values)
    if text not in names:
        raise SpecError(Fault(option, f"found {text!r}", nearest(text, names)))
    return text


def output_file(option: str, text: str, suffix: str = "") -> Path:
    """Return the file that is to be written, whose folder is there; its name ends as it should."""
    path = Path(text)
    if path.is_dir():
        raise SpecError(Fault(option, f"{text!r} is a folder", "name a file in it"))
    if not path.absolute().parent.is_dir():
        raise SpecError(Fault(option, f"there is no folder {str(path.parent)!r}"))
    if suffix and path.suffix.lower() != suffix:
        raise SpecError(Fault(option, f"{text!r} does not end in {suffix}", f"{path.stem}{suffix}"))
    return path


def picture_file(text: str) -> Path:
    """Return the picture that is to be written."""
    return output_file("--picture", text, ".svg")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
