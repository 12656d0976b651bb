"""A plan in the options of this program, as files state them."""

from __future__ import annotations

from meshwright.frameworks.launch import degrees, micro_batches
from meshwright.frameworks.table import Value
from meshwright.sharding.strategy import Offload
from meshwright.train.answer import Plan


def words_of(plan: Plan) -> dict[str, Value]:
    """Return the options that state a plan; None: what frameworks do unless they are told."""
    work, plan_options, software = plan.workload, plan.best.plan_options, plan.workload.software
    sizes = degrees(plan)
    steps = None
    if work.total_tokens is not None:
        steps = int(-(-work.total_tokens // work.tokens_per_step))
    return {
        **sizes,
        "seq": work.sequence_length,
        "global_batch": work.global_batch_size,
        "accumulation": micro_batches(plan),
        "steps": steps,
        "zero_stage": f"{plan_options.zero_stage}",
        "reshard_after_forward": None if plan_options.reshard_after_forward else "off",
        "overlap_data_parallel": "on" if plan_options.overlap_data_parallel else "off",
        "sequence_parallel": "on" if plan_options.sequence_parallel else "off",
        "async_tp": plan_options.overlap_tensor_parallel and sizes["tp"] > 1,
        "context_kind": f"{plan_options.context_kind}",
        "schedule": f"{plan_options.schedule}",
        "recompute": f"{plan_options.recompute}",
        "offload": None if plan_options.offload is Offload.NONE else f"{plan_options.offload}",
        "precision": work.precision.matmul,
        "compiled": software.compiled,
        "loss": software.loss,
        "cuda_graphs": software.cuda_graphs,
    }
