"""A plan in the options of this program, as files state them."""

from __future__ import annotations

from meshwright.frameworks.launch import degrees, micro_batches
from meshwright.frameworks.table import Value
from meshwright.sharding.strategy import Offload
from meshwright.train.answer import Plan


def words_of(plan: Plan) -> dict[str, Value]:
    """Return the options that state a plan; None: what frameworks do unless they are told."""
    work, structure, software = plan.workload, plan.best.structure, plan.workload.software
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
        "zero_stage": f"{structure.zero_stage}",
        "reshard_after_forward": None if structure.reshard_after_forward else "off",
        "overlap_data_parallel": "on" if structure.overlap_data_parallel else "off",
        "sequence_parallel": "on" if structure.sequence_parallel else "off",
        "async_tp": structure.overlap_tensor_parallel and sizes["tp"] > 1,
        "context_kind": f"{structure.context_kind}",
        "schedule": f"{structure.schedule}",
        "recompute": f"{structure.recompute}",
        "offload": None if structure.offload is Offload.NONE else f"{structure.offload}",
        "precision": work.precision.matmul,
        "compiled": software.compiled,
        "loss": software.loss,
        "cuda_graphs": software.cuda_graphs,
    }
