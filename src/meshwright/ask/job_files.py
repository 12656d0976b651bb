"""Files that start a job in place of options: their values count where no option is given."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meshwright.ask.questions import OF_WORKLOAD, Fixed
from meshwright.ask.record import Question
from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import PYTHON, SCRIPTS, TREES

if TYPE_CHECKING:
    from meshwright.frameworks.reading.job import ReadJob

OF_JOBS = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
           "per_device_train_batch_size", "distributed_type", "fsdp_config"}  # fmt: skip
"""Keys of JSON files that start a job; others are plans or models."""


def is_job_file(text: object) -> bool:
    """Return whether a text names a file that may start a job: neither a model nor a plan."""
    if not isinstance(text, str) or not text.lower().endswith((*SCRIPTS, *TREES, PYTHON)):
        return False
    path = Path(text)
    if not path.is_file() or path.name == "config.json":
        return False
    if path.suffix.lower() != ".json":
        return True
    from meshwright.catalog.files import read_json

    try:
        content = read_json(path)
    except SpecError:  # its reader reports the fault
        return False
    return isinstance(content, Mapping) and bool(OF_JOBS & set(content))


def files_of(asked: Any) -> list[str]:
    """Return the files that start a job: those of ``--from``, and MODEL where it is one."""
    files = list(asked.from_ or ())
    return [asked.model, *files] if is_job_file(asked.model) else files


Asked = TypeVar("Asked", bound=Question)


def with_job(
    asked: Asked, *, keeps_strategy: bool = True, kinds: Sequence[str] = ("training",)
) -> tuple[Asked, ReadJob | None]:
    """Return the question with the values of files, and their job; None: no file is named.

    Parameters
    ----------
    keeps_strategy
        Take degrees and choices from the files too; otherwise they are left to a search.
    kinds
        What the job may do: ``training``, ``serving``.

    Raises
    ------
    SpecError
        The files cannot be read, or an option is needed beside them.
    """
    question: Any = asked
    files = files_of(question)
    if not files:
        if question.set:
            raise SpecError(Fault("--set", "applies only with launch files"))
        return asked, None
    variables, question = question.set, question.but(from_=None, set=None)
    if is_job_file(question.model):
        question = question.but(model=None)
    stated, options = question.stated, question.options
    job = read_files(files, question.on, variables, {options[name].target for name in stated})
    origin = ", ".join(files)
    if job.kind not in kinds:
        raise SpecError(_OTHERS[job.kind], origin=origin)
    skipped = set(OF_WORKLOAD) if "workload" in stated else set()
    skipped |= set() if keeps_strategy else set(Fixed.options)
    skipped |= {"lora_rank", "lora_targets"} if "optimizer" in stated else set()
    # Lengths of prompts and answers stand for the longest sequence.
    skipped |= {"context"} if "prompt" in stated else set()
    names = {option.target: name for name, option in options.items()}
    values = {names[key]: value for key, value in job.options.items() if key in names}
    values.setdefault("framework", job.options.get("server", job.framework))
    values["on"] = job.devices.system
    question = question.but(
        **{name: value for name, value in values.items() if name not in stated.keys() | skipped}
    )
    by_flag = {option.flag: name for name, option in options.items()}
    missing: list[Fault] = [
        fault for fault in job.missing
        if by_flag.get(fault.path, "") not in question.stated.keys() | skipped
    ]  # fmt: skip
    if question.on is None and all(fault.path != "--on" for fault in missing):
        example, message = job.devices.example, "is needed: the files do not name the chips"
        missing.append(Fault("--on", message, example))
    if missing:
        raise SpecError(missing, origin=origin)
    if keeps_strategy and job.kind == "training" and (idle := _idle_ranks(question)):
        raise SpecError(idle, origin=origin)
    return question, job


_OTHERS = {
    "serving": Fault("", "starts a server", "estimate prices it, serve --from finds a better one"),
    "training": Fault("", "trains", "estimate prices it, plan --from finds a better one"),
}
"""Faults of jobs that do something else."""


def _idle_ranks(asked: Any) -> Fault | None:
    """Return the fault of degrees that do not fill the devices: each launcher starts all of them.

    Source: world size over tp x pp x cp in NVIDIA/Megatron-LM ``megatron/training/arguments.py``;
    the product of all degrees in pytorch/torchtitan ``torchtitan/distributed/parallel_dims.py``,
    huggingface/accelerate ``parallelism_config.py`` and AI-Hypercomputer/maxtext
    ``maxtext_utils.py`` (2026-11).
    """
    from meshwright.catalog.systems import load_system
    from meshwright.spec.system import SystemSpec

    sizes = {name: getattr(asked, name) or (1,) for name in ("tp", "cp", "pp", "dp", "mbs")}
    if asked.errors or any(len(size) != 1 for size in sizes.values()):
        return None  # other faults are told
    degrees = {name: size[0] for name, size in sizes.items()}
    micro, on, batch = degrees.pop("mbs"), asked.on, asked.global_batch
    system = on if isinstance(on, SystemSpec) else load_system(on)
    number, has_dp = system.num_alive, asked.dp is not None
    unit = math.prod(degrees.values())
    if number == unit or (not has_dp and number % unit == 0):
        return None
    stated = {name: size for name, size in degrees.items() if has_dp or name != "dp"}
    written = " x ".join(f"{name} {size}" for name, size in stated.items())
    replicas = [1] if has_dp else [
        dp for dp in range(1, 2 * (number // unit) + 3) if not batch or batch % (dp * micro) == 0
    ]  # fmt: skip
    nearest = min((dp * unit for dp in replicas or [1]), key=lambda count: abs(count - number))
    what = f"are {unit} ranks" if has_dp else f"do not divide the {number} devices"
    message = f"{written} {what}, but each of {number} devices starts one" if has_dp else ""
    return Fault("devices", message or f"{written} {what}", f"--on {nearest}x{system.chip.name}")


def read_files(
    files: Sequence[str], on: Any, variables: Sequence[str] | None = None,
    stated: Collection[str] = (),
) -> ReadJob:  # fmt: skip
    """Return the job that files start, beside the given options."""
    from meshwright.catalog.systems import load_system
    from meshwright.frameworks.reading.files import read_job
    from meshwright.spec.system import SystemSpec

    def num_devices() -> int | None:
        if on is None:
            return None
        return (on if isinstance(on, SystemSpec) else load_system(on)).num_alive

    return read_job(
        files, num_devices=num_devices, variables=variables_of(variables or ()), stated=stated
    )


def variables_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the values of ``--set NAME=VALUE``."""
    found, faults = {}, []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|\d+", name):
            faults.append(Fault("--set", f"found {text!r}", "NAME=VALUE, such as NNODES=8"))
        found[name] = value
    if faults:
        raise SpecError(faults)
    return found
