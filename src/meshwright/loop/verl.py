"""Options of verl that start a step, under their names on its command line.

Source: verl, ``trainer/config``: ``rollout/rollout.yaml``, ``actor/actor.yaml``,
``engine/fsdp.yaml`` and ``engine/megatron.yaml``.
"""

from __future__ import annotations

from typing import Literal

from meshwright.loop.step import Step
from meshwright.sharding.strategy import Offload, Recompute

ACTOR, ROLLOUT, REFERENCE = (f"actor_rollout_ref.{role}" for role in ("actor", "rollout", "ref"))
ESTIMATORS = {"ppo": "gae", "dapo": "grpo"}
"""Advantage estimators with a name other than that of the algorithm."""


def backend_of(step: Step) -> Literal["fsdp", "megatron"] | None:
    """Return the engine of verl that trains so; None: neither does.

    FSDP shards all state and splits sequences alone; Megatron shards the state of the optimizer.
    What they offload lies on the host between phases, not during an update.
    """
    found = step.trainer.candidate
    options, degrees = found.plan_options, found.strategy
    if (
        options.offload is not Offload.NONE
        or options.recompute is Recompute.SELECTIVE
        or step.sharing.apart
    ):
        return None
    if options.zero_stage == 3 and degrees.tp == degrees.pp == degrees.ep == 1:
        return "fsdp"
    return "megatron" if options.zero_stage <= 1 else None


def verl_options(step: Step) -> dict[str, str]:
    """Return the options by name; empty where verl trains otherwise, or apart."""
    backend, work, engine = backend_of(step), step.trainer.work, step.engine.serving
    if backend is None:
        return {}
    found, system = step.trainer.candidate, step.trainer.problem.system
    degrees, is_full = found.strategy, found.plan_options.recompute is Recompute.FULL
    options: dict[str, object] = {
        "algorithm.adv_estimator": ESTIMATORS.get(work.algorithm, work.algorithm),
        "data.train_batch_size": work.prompts,
        "data.max_prompt_length": work.prompt,
        "data.max_response_length": int(work.lengths.longest),
        f"{ACTOR}.strategy": backend,
        f"{ACTOR}.ppo_mini_batch_size": work.mini_batch,
        f"{ACTOR}.ppo_epochs": work.epochs,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": int(
            degrees.micro_batch_size * step.trainer.problem.workload.sequence_length / degrees.cp
        ),
        f"{ACTOR}.use_kl_loss": work.models.has_reference,
        f"{ROLLOUT}.name": engine.server.name,
        f"{ROLLOUT}.n": work.samples,
        f"{ROLLOUT}.tensor_model_parallel_size": int(engine.strategy.tp),
        f"{ROLLOUT}.gpu_memory_utilization": round(step.share, 2),
        f"{ROLLOUT}.max_num_seqs": max(round(step.rolled.in_flight), 1),
        f"{ROLLOUT}.free_cache_engine": not step.sharing.keeps_engine,
        "trainer.n_gpus_per_node": min(system.domain_size, system.num_alive),
        "trainer.nnodes": max(system.num_alive // system.domain_size, 1),
    }
    own = f"{ACTOR}.{'fsdp_config' if backend == 'fsdp' else 'megatron'}"
    options |= {
        f"{own}.param_offload": step.park == "all",
        f"{own}.optimizer_offload": step.park != "none",
        f"{own.replace(ACTOR, REFERENCE)}.param_offload": step.park == "all",
    }
    if backend == "fsdp":
        options |= {
            f"{ACTOR}.ulysses_sequence_parallel_size": int(degrees.cp),
            f"{own}.fsdp_size": int(degrees.dp_shard) if degrees.dp_replicate > 1 else -1,
            "actor_rollout_ref.model.enable_gradient_checkpointing": is_full,
        }
        return {name: str(value) for name, value in options.items()}
    axes = {"tensor_model": degrees.tp, "pipeline_model": degrees.pp, "context": degrees.cp,
            "expert_model": degrees.ep, "expert_tensor": degrees.etp}  # fmt: skip
    options |= {f"{own}.{axis}_parallel_size": int(degree) for axis, degree in axes.items()}
    options[f"{own}.use_distributed_optimizer"] = found.plan_options.zero_stage == 1
    options[f"{own}.sequence_parallel"] = found.plan_options.sequence_parallel
    if degrees.num_virtual_stages > 1:
        options[f"{own}.virtual_pipeline_model_parallel_size"] = int(degrees.num_virtual_stages)
    if is_full:
        options |= {
            f"{own}.override_transformer_config.recompute_granularity": "full",
            f"{own}.override_transformer_config.recompute_method": "uniform",
            f"{own}.override_transformer_config.recompute_num_layers": 1,
        }
    return {name: str(value) for name, value in options.items()}
