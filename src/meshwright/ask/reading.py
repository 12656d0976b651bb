"""Reading one value after another: complaints are kept until all is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar, cast

from meshwright.base.errors import Fault, MeshwrightError, SpecError

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


class Reading:
    """Values that are read in a row; complaints are kept until :meth:`done`."""

    def __init__(self, errors: Iterable[MeshwrightError] = ()) -> None:
        self.errors = list(errors)

    def value(
        self, read: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Return the value of ``read``, or None after a complaint: ``done`` then raises."""
        try:
            return read(*args, **kwargs)
        except MeshwrightError as error:
            self.errors.append(error)
            return cast(Value, None)

    def fault(self, path: str, message: str, fix: str = "") -> None:
        """Keep a complaint."""
        self.errors.append(SpecError(Fault(path, message, fix)))

    def done(self) -> None:
        """Raise the kept complaints: one as it is, several as the faults of one error."""
        errors = {id(error): error for error in self.errors}.values()
        if len(errors) == 1:
            raise self.errors[0]
        faults = dict.fromkeys(fault for error in errors for fault in faults_of(error))
        if faults:
            raise SpecError(tuple(faults))


def faults_of(error: MeshwrightError) -> tuple[Fault, ...]:
    """Return the faults of an error; its file comes before the path of its field."""
    if not isinstance(error, SpecError):
        return (Fault("", str(error)),)
    if not error.origin:
        return error.faults
    return tuple(
        Fault(": ".join(filter(None, (error.origin, f.path))), f.message, f.fix)
        for f in error.faults
    )


def in_file(fault: Fault) -> Fault:
    """Return the fault of an option as a file states it: without dashes."""
    if not fault.path.startswith("--"):
        return fault
    name = fault.path.removeprefix("--with ").removeprefix("--").replace("-", "_")
    return Fault(name, fault.message, fault.fix)
