"""The program of torchtitan itself, run dry: its model, its parallelism, its loss.

Only where torchtitan is installed. Its attention by ``flex_attention`` is a compiled kernel that
fake tensors would run operator by operator, with all scores; flash attention, which keeps the same
tensors, stands for it.

Source: torchtitan 0.3.0, ``trainer.py``, ``models/llama3/parallelize.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from meshwright.frameworks.torchtitan_models import own_module
from meshwright.run.dry.program import RankProgram
from meshwright.sharding.strategy import Recompute
from meshwright.train.answer import Plan


def torchtitan_version() -> str | None:
    """Return the version of torchtitan; None where it is not installed."""
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return None


def is_of_torchtitan(plan: Plan) -> bool:
    """Tell whether torchtitan itself can run a plan dry here: without a pipeline."""
    named = plan.workload.software.framework.partition("==")[0] == "torchtitan"
    known = plan.model.architecture == "LlamaForCausalLM"
    return named and known and plan.best.strategy.pp == 1 and torchtitan_version() is not None


class TorchtitanProgram(RankProgram):
    """One rank of a plan in torchtitan."""

    def _groups(self, mesh: DeviceMesh) -> dict[str, DeviceMesh]:
        from torchtitan.distributed import ParallelDims, parallel_dims, utils

        sizes = self.sizes
        degrees = {n: sizes[n] for n in ("dp_replicate", "dp_shard", "cp", "tp", "pp")}
        with _on_cpu(parallel_dims):
            self.parallel = ParallelDims(
                **degrees, ep=1, world_size=self.world_size, spmd_backend="partial_dtensor"
            )
            self.parallel.build_mesh()
        utils.set_spmd_backend("partial_dtensor")
        groups = super()._groups(mesh)
        known = {"fsdp": "dp_shard", "tp": "tp", "dp_replicate": "dp_replicate"}
        for name, axis in known.items():
            own = self.parallel.get_optional_mesh(name)
            if own is not None:
                self._axis_of[own.get_group().group_name] = axis
        return groups

    def _chunks(self, mesh: DeviceMesh, groups: dict[str, DeviceMesh]) -> list[nn.Module]:
        config = _config(self.plan)
        spec = config.model_spec
        spec.model.update_from_config(config=config)
        made = spec.model.build()
        self.criterion = config.loss.loss_fn.build(compile_config=config.compile)
        made = spec.parallelize_fn(
            made, parallel_dims=self.parallel, training=config.training,
            parallelism=config.parallelism, compile_config=config.compile,
            ac_config=config.activation_checkpoint, dump_folder="",
        )  # fmt: skip
        return [made]

    def _loss(self, mesh: DeviceMesh, logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.criterion(logits, targets, torch.tensor(1.0))[0]
        return loss


def _config(plan: Plan) -> Any:
    """Return the configuration of the module that is exported, with the plan in it."""
    scope: dict[str, Any] = {}
    exec(compile(own_module(plan), "torchtitan_model", "exec"), scope)
    config = scope["train"]()
    strategy, options = plan.best.strategy, plan.best.plan_options
    parallel, training = config.parallelism, config.training
    parallel.data_parallel_shard_degree = int(strategy.dp_shard)
    parallel.data_parallel_replicate_degree = int(strategy.dp_replicate)
    parallel.tensor_parallel_degree = int(strategy.tp)
    parallel.enable_sequence_parallel = options.sequence_parallel
    parallel.spmd_backend = "partial_dtensor"
    parallel.fsdp_reshard_after_forward = "default" if options.reshard_after_forward else "never"
    training.seq_len = plan.workload.sequence_length
    training.local_batch_size = int(strategy.micro_batch_size)
    training.enable_cpu_offload = options.offload.has_weights
    if options.recompute is Recompute.NONE:
        config.activation_checkpoint = None
    elif options.recompute is Recompute.FULL:
        from torchtitan.distributed.activation_checkpoint import FullAC

        config.activation_checkpoint = FullAC.Config()
    return config


@contextmanager
def torchtitan_on_fake_tensors() -> Iterator[None]:
    """Have torchtitan run on fake tensors: on their device, with flash attention."""
    from torchtitan.models.common.attention import FlexAttention

    flex: Callable[..., Any] = FlexAttention.forward
    FlexAttention.forward = _flash
    try:
        yield
    finally:
        FlexAttention.forward = flex


def _flash(
    self: Any, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, **others: Any  # noqa: N803
) -> Tensor:  # fmt: skip
    query, key, value = (part.transpose(1, 2) for part in (q_BLNH, k_BLNH, v_BLNH))
    made = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    return made.transpose(1, 2)


@contextmanager
def _on_cpu(module: Any) -> Iterator[None]:
    """Have a module of torchtitan make meshes of the device of the fake tensors."""
    before, module.device_type = module.device_type, "cpu"
    try:
        yield
    finally:
        module.device_type = before
