"""The published errors are those of what people run: rows asked through the public interface.

A row becomes the keywords that somebody who knows its job would give; what comes out is what
``validate`` counts, to the last digit, with the framework and without.
"""

import random

import numpy as np
import pytest

import meshwright as mw
from meshwright.calibration.errors import by_group
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import published_rows
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
    for row in published_rows():
        found.setdefault(row.group, []).append(row)
    return found


def keywords(entry):
    """Return a row as options: what it states, in the words of the command line."""
    row, job = entry.row, entry.job
    work, plan = job.problem.workload, row.parallelism
    chosen = job.strategy
    options = {
        "on": job.problem.system, "seq": work.sequence_length,
        "global_batch": work.global_batch_size, "precision": work.precision.matmul,
        "tp": int(chosen.tp), "pp": int(chosen.pp), "cp": int(chosen.cp), "ep": int(chosen.ep),
        "dp_shard": int(chosen.dp_shard), "mbs": int(chosen.micro_batch_size),
        "vpp": int(chosen.num_virtual_stages),
    }  # fmt: skip
    stage = 3 if plan.zero_stage is None and plan.fsdp else plan.zero_stage
    if plan.sp is not None and chosen.tp > 1:
        options["sp"] = "on" if plan.sp else "off"
    if stage is not None and chosen.dp_shard * chosen.cp > 1:
        options["zero"] = stage
    if row.recompute is not None:
        options["recompute"] = str(row.recompute)
    for name in ("recompute_modules", "kept_tensors", "offloaded_tensors"):
        if named := getattr(job.structure, name):
            options[name] = "+".join(named)
    if row.task == "finetune-lora":
        options |= {"optimizer": "adapters", "zero": job.structure.zero_stage}
    return options


def asks_the_same(entry):
    """Return whether options say all that the row says of its plan."""
    job = entry.job
    types = job.problem.workload.precision
    plain = types == type(types).on(job.problem.system.chip, types.matmul)
    stated = entry.row.precision is not None and entry.row.precision.activation is not None
    return plain and stated and int(job.strategy.etp) == 1


@pytest.mark.slow
def test_without_a_framework_the_error_is_that_of_estimate():
    asked = [entry for entry in sampled(is_named=False) if asks_the_same(entry)]
    assert len(asked) > 100
    for entry in asked:
        answer = mw.estimate(entry.job.problem.model, **keywords(entry)).best.estimate
        # On a grid the axes are placed as well, which rows are not: a few per cent.
        near = 0.1 if entry.job.problem.has_grid else 1e-9
        assert answer.tokens_per_s == pytest.approx(entry.predicted_tokens_per_s, rel=near), (
            entry.row.id
        )
        if entry.job.problem.has_grid:
            continue
        low_s, high_s = answer.interval_s
        tokens = entry.job.problem.workload.tokens_per_step
        assert (tokens / high_s, tokens / low_s) == pytest.approx(entry.interval, rel=1e-9)


@pytest.mark.slow
def test_with_its_framework_the_error_is_that_of_estimate():
    compared = 0
    for entry in sampled(is_named=True):
        row = entry.row
        stated = any(value is not None for value in vars(row.software).values())
        fused = row.flash_attention in (None, entry.job.habits.software.flash_attention)
        if row.framework is None or stated or not fused or not asks_the_same(entry):
            continue
        job = entry.job
        if any(
            f.path.startswith("launch-")
            for f in check_problem(job.problem, job.strategy, job.structure)
        ):
            continue
        answer = mw.estimate(
            job.problem.model, framework=row.framework, **keywords(entry)
        ).best.estimate
        near = 0.1 if job.problem.has_grid else 1e-9
        assert answer.tokens_per_s == pytest.approx(entry.predicted_tokens_per_s, rel=near), row.id
        compared += 1
    assert compared > 40


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
    for name, rows in by_group(predict(published_rows()[:1], "calibrated")).items():
        assert len(rows) == 1
        assert record.groups[name].unnamed.median is not None
