"""Measurements of users: a figure of one step, or a file of jobs with theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.ask.declared import strategy_of
from meshwright.ask.job_files import with_job
from meshwright.ask.kinds import quantity
from meshwright.ask.questions import MeasuredJob
from meshwright.ask.reading import Reading, faults_of, in_file
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.files import read_text, read_tree
from meshwright.cost.operator import stated_rate
from meshwright.train.answer import Plan
from meshwright.train.measured.factors import Factors, Measurement
from meshwright.train.price import estimate

MEASURED = "--measured"
MEASURED_MEMORY = "--measured-memory"
ALLOWED = (
    "such as '8.1 s', '412k tokens/s', '6.4k tokens/s/device', '43%' (MFU with causal scores), "
    "'43% mfu_full' or '400 TFLOP/s' (a device)"
)
_MFU = re.compile(r"([0-9.]+)\s*(%?)\s*(mfu_causal|mfu_full|(?<=%)(?:\s*mfu)?)", re.IGNORECASE)
_A_DEVICE = re.compile(r"/(device|gpu|chip)$", re.IGNORECASE)


def check_measured_bytes(size: float, plan: Plan) -> None:
    """Refuse a memory of the fullest device [bytes] above its capacity."""
    capacity = plan.system.chip.main_memory.capacity_bytes
    if size > capacity:
        message = f"found {format_bytes(size)}, but a device has {format_bytes(capacity)}"
        raise SpecError(Fault(MEASURED_MEMORY, message, "of the fullest device, not of all"))


def measured_step_s(text: str, plan: Plan) -> float:
    """Return the time of a step that a figure states [s]: a time, a throughput, an MFU.

    Raises
    ------
    SpecError
        When it is none of them, not above 0, or less than the products of the step take at the
        peak of all devices.
    """
    try:
        step_s = _step_s(text.strip(), plan)
    except (SpecError, ValueError) as error:
        kept = isinstance(error, SpecError) and "expected more than 0" in str(error)
        message = "expected more than 0" if kept else "expected the time of a step"
        raise SpecError(Fault(MEASURED, f"found {text!r}, {message}", ALLOWED)) from error
    price = plan.best.estimate
    least_s = price.step_time_s * price.mfu_causal
    if step_s < least_s:
        message = f"found {text!r}, an MFU of {least_s / step_s:.0%} with causal scores"
        fix = f"at its peak a step takes {format_seconds(least_s)}; is the batch that of the job?"
        raise SpecError(Fault(MEASURED, message, fix))
    return step_s


def _step_s(text: str, plan: Plan) -> float:
    """Return the time of a step by the unit of the figure [s].

    A bare share is an MFU with causal scores, as on our screens; FLOP/s are those of a device.
    """
    tokens, price = plan.workload.tokens_per_step, plan.best.estimate
    if "mfu" in text.lower() or text.endswith("%"):
        match = _MFU.fullmatch(text)
        if match is None:
            raise ValueError(text)
        number, percent, name = match.groups()
        share = float(number) / (100.0 if percent else 1.0)
        if not 0.0 < share <= 1.0:
            raise ValueError(text)
        kind = name.lower() if "_" in name else "mfu_causal"
        return price.step_time_s * float(getattr(price, kind)) / share
    if "flop" in text.lower():
        rate = quantity(MEASURED, _A_DEVICE.sub("", text), "flops_per_s")
        peak = stated_rate(plan.system.chip, plan.workload.precision.matmul)
        return price.step_time_s * price.mfu_causal * peak / rate
    if _A_DEVICE.search(text):
        each = quantity(MEASURED, _A_DEVICE.sub("", text), "tokens_per_s")
        return tokens / (each * price.num_devices_used)
    if "tok" in text:
        return tokens / quantity(MEASURED, text, "tokens_per_s")
    return quantity(MEASURED, text, "s")


def factors_of(asked: Any, family: str) -> Factors:
    """Return the factors behind the jobs of ``--measured``.

    Parameters
    ----------
    family
        Family of the chips of the question.

    Raises
    ------
    SpecError
        With all faults of the file, among them jobs on chips of another family.
    """
    from meshwright.train.measured.learning import learn

    found = measurements_of(Path(asked.measured), asked.calibration)
    faults = [
        Fault(
            entry.name, f"ran on {chip.family}, which says nothing about {family}", "leave it out"
        )
        for entry in found
        if (chip := entry.problem.system.chip).family != family
    ]
    if faults:
        raise SpecError(faults, origin=asked.measured)
    return learn(found)


def measurements_of(path: Path, calibration: str) -> list[Measurement]:
    """Return the jobs of a file: rows of measurements in JSON, or a YAML list of options.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    from meshwright.calibration.prediction import measurements
    from meshwright.calibration.rows import read_rows

    if path.suffix == ".json":
        return measurements(read_rows(path), calibration, str(path))
    return list(_jobs(path, calibration))


def _jobs(path: Path, calibration: str) -> Iterator[Measurement]:
    """Yield the jobs of a YAML file, after all of them are read."""
    tree = read_tree(read_text(path), str(path)).value
    entries = tree.get("jobs")
    unknown = [Fault(str(name), "is not a field", "jobs") for name in tree if name != "jobs"]
    if unknown or not isinstance(entries, list) or not entries:
        fault = Fault("jobs", "expected a list of jobs", "each with model, on, ..., measured")
        raise SpecError(unknown or [fault], origin=str(path))
    reading, found = Reading(), []
    for index, entry in enumerate(entries):
        one = Reading()
        found.append(one.value(_job, f"jobs[{index}]", entry, calibration))
        reading.errors += [
            SpecError(Fault(_place(index, in_file(fault).path), fault.message, fault.fix))
            for error in one.errors
            for fault in faults_of(error)
        ]
    if reading.errors:
        faults = [fault for error in reading.errors for fault in faults_of(error)]
        raise SpecError(faults, origin=str(path))
    yield from found


def _place(index: int, path: str) -> str:
    """Return the place of a fault in a job."""
    return ".".join(filter(None, (f"jobs[{index}]", path)))


def _job(name: str, entry: Any, calibration: str) -> Measurement:
    """Return one job: options of ``explain`` without their dashes."""
    if not isinstance(entry, Mapping):
        raise SpecError(Fault("", f"expected options of a job, found {entry!r}"))
    asked, _ = with_job(_asked(entry))
    for option in ("model", "on", "measured"):
        if option not in asked.stated:
            raise SpecError(Fault(option, "is needed"))
    found, strategy, plan_options = strategy_of(asked)
    plan = estimate(
        found.model, found.system, found.workload, strategy, plan_options, calibration=calibration,
        checks_power=False,
    )  # fmt: skip
    return Measurement(name, plan.problem, strategy, plan_options,
                       measured_step_s(str(asked.measured), plan))  # fmt: skip


def _asked(entry: Mapping[Any, Any]) -> MeasuredJob:
    """Return the question that the options of a job ask, all faults at once."""
    names = {option.word: name for name, option in MeasuredJob.options.items()}
    values = {str(key).replace("-", "_"): (key, value) for key, value in entry.items()}
    reading = Reading()
    for word, (key, _) in values.items():
        if word not in names:
            dashed = [name.replace("_", "-") for name in names]
            reading.fault(str(key), "is not an option of a job", nearest(str(key), dashed))
    known = {names[word]: value for word, (_, value) in values.items() if word in names}
    asked = MeasuredJob.ask(known)
    reading.errors += asked.errors
    reading.done()
    return asked
