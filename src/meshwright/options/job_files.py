"""Files that start a job in place of options: their values count where no option is given."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import PYTHON, SCRIPTS, TREES
from meshwright.options.question import FIXED, STATED_IN_FILE, option_of

if TYPE_CHECKING:
    from meshwright.frameworks.reading.job import Job

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


def files_of(args: argparse.Namespace) -> list[str]:
    """Return the files that start a job: those of ``--from``, and MODEL where it is one."""
    named = getattr(args, "origin", None) or []
    files = [named] if isinstance(named, str) else list(named)
    return [args.model, *files] if is_job_file(args.model) else files


def with_job(
    args: argparse.Namespace, *, keeps_strategy: bool = True, may_serve: bool = False
) -> tuple[argparse.Namespace, Job | None]:
    """Return the options with the values of files, and their job; None: no file is named.

    Parameters
    ----------
    keeps_strategy
        Take degrees and choices from the files too; otherwise they are left to a search.
    may_serve
        The job may be a server; otherwise it trains.

    Raises
    ------
    SpecError
        The files cannot be read, or an option is needed beside them.
    """
    files = files_of(args)
    if not files:
        if getattr(args, "set", None):
            raise SpecError(Fault("--set", "applies only with files that start a job"))
        return args, None
    given = dict(vars(args))
    if is_job_file(given["model"]):
        given["model"] = None
    stated = {name for name, value in given.items() if value not in (None, False, [])}
    job = read_files(files, given, stated)
    origin = ", ".join(files)
    if job.kind == "serving" and not may_serve:
        fault = Fault("", "starts a server", "estimate prices it, plan --from finds a better one")
        raise SpecError(fault, origin=origin)
    skipped = set(STATED_IN_FILE) if given.get("workload") else set()
    skipped |= set() if keeps_strategy else set(FIXED)
    skipped |= {"server"} if "framework" in stated else set()
    skipped |= {"lora_rank", "lora_targets"} if "optimizer" in stated else set()
    if job.kind == "serving":  # lengths of prompts and answers stand for the longest sequence
        skipped |= {"context"} if "prefill" in stated else set()
    merged = given | {
        name: _as_option(value) for name, value in job.options.items()
        if name not in stated | skipped
    }  # fmt: skip
    if job.kind == "training" and "framework" not in stated | skipped:
        merged["framework"] = job.framework
    if given["on"] is None:
        merged["on"] = job.devices.system
    missing = [
        fault for fault in job.missing
        if merged.get(_name(fault.path)) is None and _name(fault.path) not in skipped
    ]  # fmt: skip
    if merged["on"] is None and all(fault.path != "--on" for fault in missing):
        example, message = job.devices.example, "is needed: the files do not name the chips"
        missing.append(Fault("--on", message, example))
    if missing:
        raise SpecError(missing, origin=origin)
    if keeps_strategy and job.kind == "training" and (idle := _idle_ranks(merged)):
        raise SpecError(idle, origin=origin)
    return argparse.Namespace(**{**merged, "origin": None}), job


def _idle_ranks(merged: Mapping[str, Any]) -> Fault | None:
    """Return the fault of degrees that do not fill the devices: each launcher starts all of them.

    Source: world size over tp x pp x cp in NVIDIA/Megatron-LM ``megatron/training/arguments.py``;
    the product of all degrees in pytorch/torchtitan ``torchtitan/distributed/parallel_dims.py``,
    huggingface/accelerate ``parallelism_config.py`` and AI-Hypercomputer/maxtext
    ``maxtext_utils.py`` (2026-11).
    """
    from meshwright.catalog.systems import load_system
    from meshwright.spec.system import SystemSpec

    sizes = {name: str(merged.get(name) or 1) for name in ("tp", "cp", "pp", "dp")}
    on, batch = merged["on"], str(merged.get("global_batch") or "")
    if not all(size.isdigit() for size in sizes.values()):
        return None  # the reader of the options reports the fault
    system = on if isinstance(on, SystemSpec) else load_system(on)
    number, has_dp = system.num_alive, merged.get("dp") is not None
    unit = math.prod(map(int, sizes.values()))
    if number == unit or (not has_dp and number % unit == 0):
        return None
    written = " x ".join(f"{name} {size}" for name, size in sizes.items() if has_dp or name != "dp")
    micro = str(merged.get("micro_batch_size") or 1)
    replicas = [1] if has_dp else [
        dp for dp in range(1, 2 * (number // unit) + 3)
        if not (batch.isdigit() and micro.isdigit()) or int(batch) % (dp * int(micro)) == 0
    ]  # fmt: skip
    nearest = min((dp * unit for dp in replicas or [1]), key=lambda count: abs(count - number))
    what = f"are {unit} ranks" if has_dp else f"do not divide the {number} devices"
    message = f"{written} {what}, but each of {number} devices starts one" if has_dp else ""
    return Fault("devices", message or f"{written} {what}", f"--on {nearest}x{system.chip.name}")


def read_files(
    files: Sequence[str], given: Mapping[str, Any], stated: set[str] | None = None
) -> Job:
    """Return the job that files start, beside the given options."""
    from meshwright.catalog.systems import load_system
    from meshwright.frameworks.reading.files import read_job
    from meshwright.spec.system import SystemSpec

    def num_devices() -> int | None:
        on = given.get("on")
        if on is None:
            return None
        return (on if isinstance(on, SystemSpec) else load_system(on)).num_alive

    return read_job(
        files, num_devices=num_devices, variables=variables_of(given.get("set") or ()),
        stated=stated or (),
    )  # fmt: skip


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


def _as_option(value: Any) -> Any:
    """Return a value in the form of the command line."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _name(option: str) -> str:
    """Return the name of an option: ``--global-batch`` is ``global_batch``."""
    names = {option_of(name): name for name in (*FIXED, *STATED_IN_FILE, "model", "on", "batch",
                                                "context")}  # fmt: skip
    return names.get(option, option.lstrip("-").replace("-", "_"))
