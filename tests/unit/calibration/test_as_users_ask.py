"""The published errors are those of what people run: rows asked through the public interface.

A row becomes the keywords that somebody who knows its job would give; the answer is what
``validate`` counts, in time and memory, to the last bit, with the framework and without.
"""

import random

import numpy as np
import pytest

import meshwright as mw
from meshwright.calibration.errors import by_group
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import published
from meshwright.catalog.calibration import fit_record
from meshwright.train.question import check_problem

ROWS_OF_SOURCE = 24


def sampled(is_named):
    """Return predictions of some rows of each source."""
    generator, rows = random.Random(5), []
    for mine in by_group_of_rows().values():
        rows += generator.sample(mine, min(len(mine), ROWS_OF_SOURCE))
    found = predict(rows, "calibrated", is_named=is_named)
    return [entry for entry in found if entry.log_error is not None]


def by_group_of_rows():
    found = {}
    for row in published("training"):
        found.setdefault(row.group, []).append(row)
    return found


def workload_options(entry, is_named):
    """Return the workload of a row as options, or whole where no option says a part of it."""
    row, work = entry.row, entry.job.problem.workload
    if says_more(entry, is_named):
        return {"workload": work}
    options = {"seq": work.sequence_length, "global_batch": work.global_batch_size}
    if row.precision.matmul or row.precision.activation:
        options["precision"] = work.precision.matmul
    optimizer = row.optimizer.like if is_named and row.optimizer else None
    if row.task == "finetune-lora":
        optimizer = optimizer or "adapters"
    if optimizer is not None:
        options["optimizer"] = optimizer
    if is_named and row.framework is not None:
        options["framework"] = row.framework
    return options


OPTIONS = {"micro_batch_size": "mbs", "num_virtual_stages": "vpp", "zero_stage": "zero",
           "sequence_parallel": "sp"}  # fmt: skip
"""Options of the command line with a name of their own; dp takes the remaining devices."""


def plan_options(entry):
    """Return the plan of a row as options: what it states, in the words of the command line."""
    options = {"on": entry.job.problem.system}
    for name, value in entry.row.strategy.stated.items():
        if name == "sequence_parallel":
            value = "on" if value else "off"
        elif isinstance(value, tuple):
            value = "+".join(value)
        if (name != "dp" and value != "off") or entry.job.strategy.tp > 1:
            options[OPTIONS.get(name, name)] = value
    options.pop("dp", None)
    return options


def says_more(entry, is_named):
    """Return whether a row states software, formats or bytes that no option says."""
    row, job = entry.row, entry.job
    types = job.problem.workload.precision
    if types != type(types).on(job.problem.system.chip, types.matmul):
        return True
    usual, software = job.habits.software, row.software
    unusual = software.model_fields_set - {"flash_attention"} or (
        software.flash_attention != usual.flash_attention and software.model_fields_set
    )
    return is_named and bool(unusual or len(row.optimizer.stated if row.optimizer else ()) > 1)


def is_refused(entry):
    """Return whether a plan that ran breaks a rule that only plans to be started have."""
    job = entry.job
    return bool(check_problem(job.problem, job.strategy, job.plan_options))


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [False, True], ids=["framework unknown", "framework named"])
def test_the_error_is_that_of_estimate(is_named):
    asked = [entry for entry in sampled(is_named) if not is_refused(entry)]
    for entry in asked:
        options = plan_options(entry) | workload_options(entry, is_named)
        answer = mw.estimate(entry.job.problem.model, **options).best.estimate
        assert answer.tokens_per_s == entry.predicted_tokens_per_s, entry.row.id
        assert answer.memory_bytes == entry.memory.use.total_bytes, entry.row.id
        low_s, high_s = answer.interval_s
        tokens = entry.job.problem.workload.tokens_per_step
        assert (tokens / high_s, tokens / low_s) == entry.interval, entry.row.id
    said = [entry for entry in asked if not says_more(entry, is_named)]
    assert len(asked) > 300
    assert len(said) > 150
    assert {entry.row.group for entry in asked} >= set(fit_record("calibrated").groups)


def test_the_interval_of_no_framework_reaches_further():
    """Stacks that nobody named are slower than predicted, so the slow end lies further away."""
    spread = fit_record("calibrated").spread
    assert spread.slower.factors["unnamed_framework"] > 1.5
    known, unknown = (
        mw.estimate(
            "llama3-8b", on="64xH100", seq=8192, global_batch=512, tp=2, framework=name
        ).best.estimate
        for name in ("megatron", None)
    )
    reach = [np.log(e.interval_s[1] / e.step_time_s) for e in (known, unknown)]
    assert reach[1] > reach[0]


def test_the_record_holds_both_errors_of_each_source():
    record = fit_record("calibrated")
    assert record.unnamed.median > record.left_out.median
    for name, rows in by_group(predict(published("training")[:1], "calibrated")).items():
        assert len(rows) == 1
        assert record.groups[name].unnamed.median is not None
