"""What a row measured, in one unit: tokens per second of the whole job.

Sources count FLOPs in their own ways, so rates in FLOP/s are turned into tokens by the rule of
their source, and only where neither tokens nor seconds are stated.
"""

from __future__ import annotations

import re

from meshwright.calibration.questions import Question
from meshwright.calibration.rows import Row
from meshwright.cost.engine import stated_rate
from meshwright.graph.flops import ScoreCount, step_flops
from meshwright.graph.parameters import count_parameters


def has_measurement(row: Row) -> bool:
    """Return whether anything of a row can be held against a prediction."""
    found = row.measured
    figures = (
        found.iteration_time_s, found.tokens_per_s, found.tokens_per_s_per_chip,
        found.samples_per_s, found.tflops_per_chip, found.mfu, found.memory_bytes_per_chip,
        found.param_opt_bytes and found.activation_bytes,
    )  # fmt: skip
    return row.task == "oom" or any(figure is not None for figure in figures)


def measured_tokens_per_s(question: Question) -> float | None:
    """Return the throughput of the whole job [tokens/s]; None: not measured."""
    row, work = question.row, question.problem.workload
    found, chips = row.measured, question.problem.system.num_devices
    if found.tokens_per_s is not None:
        return found.tokens_per_s
    if found.tokens_per_s_per_chip is not None:
        return found.tokens_per_s_per_chip * chips
    if found.iteration_time_s is not None:
        return work.tokens_per_step / found.iteration_time_s
    if found.samples_per_s is not None:
        return found.samples_per_s * work.sequence_length
    flops, rate = counted_flops_per_token(question), found.tflops_per_chip
    if rate is None and found.mfu is not None:
        peak = stated_rate(question.problem.system.chip, work.precision.activation)
        rate = found.mfu * peak / 1e12
    if rate is None or flops is None:
        return None
    return rate * 1e12 * chips / flops


def counted_flops_per_token(question: Question) -> float | None:
    """Return the FLOPs that the source of a row counts for one token; None: rule not stated.

    Hardware FLOPs of Megatron: 96 B s l h^2 (1 + s/6h + V/16lh), a forward pass repeated; its
    model FLOPs are three quarters of the layers. Rules by parameters: 6 N or 8 N, with full scores
    where they are named. Otherwise the model FLOPs of all products, with full or causal scores.
    """
    rule = (question.row.flops_counting or "").lower().replace(" ", "")
    work, model = question.problem.workload, question.problem.model
    length = float(work.sequence_length)
    params = (question.row.model.params_b or 0.0) * 1e9
    if re.search(r"4\*2\*n", rule):
        return 8.0 * params if params else None
    if re.search(r"6\*?n\+12", rule):
        whole = count_parameters(model).num_params
        return 6.0 * whole + 12.0 * model.num_layers * model.hidden_size * length
    if not rule or "notstated" in rule:
        return None
    is_full = re.search(r"fulls\^2|nocausal|withoutcausal|megatron", rule)
    is_causal = not is_full and re.search(r"causal|half", rule)
    count = ScoreCount.CAUSAL if is_causal else ScoreCount.FULL
    flops = step_flops(
        question.problem.graph, num_tokens=1.0, sequence_length=length, count=count,
        recompute="full" if "hardwareflops" in rule or "hardwaretflop" in rule else "none",
    )  # fmt: skip
    is_hardware = "hardware" in rule and "modelflops" not in rule
    return float(flops.hardware if is_hardware else flops.model)
