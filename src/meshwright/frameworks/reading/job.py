"""A job as files state it: options of this program, statements read and statements ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ValidationError

from meshwright.base.errors import SpecError
from meshwright.base.records import Rows, Shown
from meshwright.frameworks.reading.given import Given, OpenOption, Options, Statement, Tree
from meshwright.frameworks.reading.launchers import Devices, Launch
from meshwright.spec.declaration import faults_of
from meshwright.spec.model import ModelSpec

if TYPE_CHECKING:
    from meshwright.frameworks.framework import LaunchFiles


@dataclass(frozen=True)
class ReadJob(Shown):
    """Job stated by the files that start it."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "framework": "framework", "kind": "kind", "model": "model", "devices": "devices",
        "options": "other_options", "read": "read", "ignored": "ignored", "missing": "missing",
        "notes": "notes",
    }  # fmt: skip
    framework: str
    """Name of the framework in the catalog; the server of a serving job."""
    kind: Literal["training", "serving"]
    options: Tree
    """Values of options of this program by name: texts and declarations."""
    devices: Devices
    read: tuple[Statement, ...]
    ignored: tuple[Statement, ...]
    """Statements that change no price."""
    missing: tuple[OpenOption, ...] = ()
    """Options of this program that have to be stated beside the files."""
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> str | None:
        """Name of the model; None: the files do not name it."""
        value = self.options.get("model")
        return value.name if isinstance(value, ModelSpec) else value

    @property
    def other_options(self) -> Options:
        """Values of options of this program, by name, without the model."""
        return {name: value for name, value in self.options.items() if name != "model"}

    def rows(self) -> Rows:
        """Return every statement of the files, whether a price depends on it, and its place."""
        return [
            {"option": one.option, "value": str(one.value), "is_read": is_read, "place": one.place}
            for is_read, statements in ((True, self.read), (False, self.ignored))
            for one in statements
        ]


@dataclass
class JobContext:
    """Context of a reader: devices, files, the command that starts the program."""

    devices: Devices
    num_devices: int | None
    """Devices that the user names, else those of the job."""
    config_files: Callable[[str], Tree]
    """The content of a file that an option names."""
    launch: Launch | None = None
    stated: frozenset[str] = field(default_factory=frozenset)
    """Options that the user states beside the files: nothing needs to be read for them."""

    def world(self, given: Given, why: str) -> int | None:
        """Return the devices of the job; a fault where their number is not stated."""
        if self.num_devices is None:
            given.needs("--on", why, self.devices.example)
        return self.num_devices


def _as_libraries_are_told(precision: str, variables: Mapping[str, str]) -> str:
    """Return fp32 or tf32, by the variables that override a program in the libraries of NVIDIA.

    Source: PyTorch 2.13, ``docs/source/notes/cuda.rst``; NVIDIA, cuBLAS 13.
    """
    if variables.get("NVIDIA_TF32_OVERRIDE") == "0":
        return "fp32"
    return "tf32" if variables.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1" else precision


_NEEDED = {
    "training": {"model": "MODEL", "seq": "--seq", "global_batch": "--global-batch"},
    "serving": {"model": "MODEL", "batch": "--batch", "context": "--context"},
}
"""Options without which nothing is priced, by their names."""


def job_of(reader: LaunchFiles, given: Given, setting: JobContext, origin: str) -> ReadJob:
    """Return the job that a reader makes of the options of a program.

    Raises
    ------
    SpecError
        Every option that is wrong, not read, or missing.
    """
    try:
        framework, options = reader.read(given, setting)
    except ValidationError as error:  # no model has these sizes
        raise SpecError([*given.faults, *faults_of(error)], origin=origin) from error
    ignored = given.rest(reader.table.ignored)
    if faults := list(dict.fromkeys(given.faults)):
        raise SpecError(faults, origin=origin)
    options = _settled({key: value for key, value in options.items() if value is not None})
    if (precision := options.get("precision")) in ("fp32", "tf32") and setting.launch is not None:
        options["precision"] = _as_libraries_are_told(precision, setting.launch.variables)
    for name, option in _NEEDED[reader.kind].items():
        name = "prompt" if name == "context" and "prefill" in options else name
        if name not in options and all(fault.path != option for fault in given.missing):
            given.missing.append(OpenOption(option, "is needed: the files do not state it"))
    return ReadJob(framework, reader.kind, options, setting.devices, given.read, ignored,
               tuple(dict.fromkeys(given.missing)), tuple(dict.fromkeys(given.notes)))  # fmt: skip


def _settled(options: Options) -> Options:
    """Return options with the tokens of all steps; ZeRO over one shard of each replica is none."""
    steps = options.pop("steps", 0)
    if steps > 0 and {"global_batch", "seq"} <= options.keys():
        options["tokens"] = steps * options["global_batch"] * options["seq"]
    is_whole = options.get("dp_shard") == options.get("cp", 1) == 1 != options.get("dp")
    return {**options, "zero_stage": "0"} if is_whole else options
