"""Plans made by hand, for any model and strategy of the catalog."""

from dataclasses import replace

from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.parts import TENSORS, MemoryPart, TimePart
from meshwright.frameworks.registry import exporters
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, Estimate, Plan


def hand_made_estimate(num_devices: int) -> Estimate:
    """Return an estimate of round numbers; no exporter prices anything."""
    return Estimate(
        fidelity="closed_form", is_calibrated=False, step_time_s=2.5,
        time_parts_s=dict.fromkeys([p.value for p in TimePart], 0.0) | {"compute_s": 2.5},
        memory_bytes=2.0**36,
        memory_parts_bytes=dict.fromkeys([p.value for p in MemoryPart], 0.0)
        | {"weights_bytes": 2.0**36},
        fullest_stage="first",
        memory_most_bytes=dict.fromkeys([p.value for p in TENSORS], 0.0),
        memory_capacity_bytes=80 * 2.0**30, host_bytes_per_device=0.0,
        num_devices_used=num_devices, num_micro_batches=1, tokens_per_s=1.0,
        tokens_per_s_per_device=1.0, mfu_causal=0.4, mfu_full=0.4, hfu=0.4, energy_j=None,
        cost_usd=None,
    )  # fmt: skip


def build(
    degrees, plan_options=None, *, model="llama3-8b", system="64xH100", batch=128, length=8192,
    optimizer="megatron-adam", **workload,
):  # fmt: skip
    """Return the plan of a strategy: degrees and plan options as given, the rest plain."""
    spec = load_model(model) if isinstance(model, str) else model
    strategy = make_strategy(**degrees)
    chosen = {"sequence_parallel": strategy.tp > 1, "zero_stage": 0} | (plan_options or {})
    work = Training(
        global_batch_size=batch, sequence_length=length, optimizer=load_optimizer(optimizer),
        **workload,
    )  # fmt: skip
    estimate = hand_made_estimate(int(strategy.num_devices))
    best = Candidate(strategy, PlanOptions(**chosen), estimate)
    return Plan(
        spec, load_system(system), work, "uncalibrated", best, fastest_s=2.5, version="0.1.0"
    )


def asked_for(plan, target):
    """Return a plan as if its question had named the framework of a target: it keeps its price."""
    named = {"framework": exporters[target].catalog}
    software = plan.workload.software.model_copy(update=named)
    return replace(plan, workload=plan.workload.model_copy(update={"software": software}))
