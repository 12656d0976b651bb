"""The program of torchtitan itself, run dry: its model, its parallelism, its loss.

Only where torchtitan is installed. Its attention by ``flex_attention`` is a compiled kernel that
fake tensors would run operator by operator, with all scores; flash attention, which keeps the same
tensors, stands for it.

Source: torchtitan 0.3.0, ``trainer.py``, ``models/llama3/parallelize.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from meshwright.frameworks.launch import SHARD_AXES
from meshwright.frameworks.registry import export
from meshwright.frameworks.torchtitan_models import OWN_MODULE
from meshwright.run.dry.experts import balanced_routing
from meshwright.run.dry.fakes import DEVICE
from meshwright.run.dry.kernels import FLASH, flash_attention
from meshwright.run.dry.launched import words_behind
from meshwright.run.dry.program import RankProgram
from meshwright.run.pipelines import LabelledStage
from meshwright.run.step_recorder import StepRecorder
from meshwright.train.answer import Plan


class TorchtitanProgram(RankProgram):
    """One rank of a plan in torchtitan, as its exported script starts it."""

    framework = "torchtitan"
    packages = ("torchtitan",)
    update_kind = "fused"  # components/optimizer/optimizer.py: implementation

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Replace compiled attention by flash attention, and balance the experts.

        Selective recomputation keeps what flash attention writes, as what it stands for.
        """
        from torchtitan.distributed import activation_checkpoint
        from torchtitan.models.common.attention import FlexAttention

        kept = activation_checkpoint._get_default_save_ops() | {FLASH}
        with (
            patch.object(FlexAttention, "forward", _flash),
            patch.object(activation_checkpoint, "_get_default_save_ops", lambda: kept),
            balanced_routing(),
        ):
            yield

    @property
    def is_sharded(self) -> bool:
        """True: torchtitan always shards; with replicas alone, over one rank."""
        return True

    @property
    def sums_last(self) -> bool:
        """False: its trainer tells no micro-batch to leave sums to a later one."""
        return False

    def _groups(self, mesh: DeviceMesh) -> dict[str, DeviceMesh]:
        from torchtitan.distributed import ParallelDims, parallel_dims, utils

        self.config = launched_config(self.plan)
        parallelism = self.config.parallelism
        with patch.object(parallel_dims, "device_type", DEVICE):
            self.parallel = ParallelDims.from_config(parallelism, self.world_size)
            self.parallel.build_mesh()
        utils.set_spmd_backend(parallelism.spmd_backend)
        groups = super()._groups(mesh)
        shards = "*".join(axis for axis in SHARD_AXES if self.sizes[axis] > 1)
        known = {"fsdp": shards, "cp": "cp", "tp": "tp", "dp_replicate": "dp_replicate",
                 "ep": "ep", "efsdp": "edp_shard"}  # fmt: skip
        for name, axis in known.items():
            own = self.parallel.get_optional_mesh(name)
            if own is not None:
                self._axis_of.setdefault(own.get_group().group_name, axis)
        if (own := self.parallel.get_optional_mesh(["dp_replicate", "efsdp"])) is not None:
            self._axis_of.setdefault(own.get_group("dp_replicate").group_name, "dp_replicate")
        return groups

    def _chunks(
        self, mesh: DeviceMesh, groups: dict[str, DeviceMesh], recorder: StepRecorder
    ) -> list[nn.Module]:
        from torchtitan.distributed import pipeline_parallel

        config, spec = self.config, self.config.model_spec
        spec.model.update_from_config(config=config)
        made = spec.model.build()
        self.criterion = config.loss.build(compile_config=config.compile)
        options = {
            "parallel_dims": self.parallel, "training": config.training,
            "parallelism": config.parallelism, "compile_config": config.compile,
            "ac_config": config.activation_checkpoint, "dump_folder": "",
        }  # fmt: skip
        if self.sizes["pp"] == 1:
            chunks = [spec.parallelize_fn(made, **options)]
        else:
            stage = partial(self._own_stage, recorder)
            with patch.object(pipeline_parallel, "PipelineStage", stage):
                self.schedule, chunks, *_ = spec.pipelining_fn(
                    made, **options, device=torch.device(DEVICE), model_config=spec.model,
                    parallelize_fn=spec.parallelize_fn, loss_fn=self.criterion,
                )  # fmt: skip
        if self._makes_no_logits and (head := chunks[-1].lm_head) is not None:
            self.criterion.set_lm_head(head)
            chunks[-1]._skip_lm_head = True
        return chunks

    @property
    def _makes_no_logits(self) -> bool:
        """Whether the loss multiplies by the head, for one chunk of the tokens at a time."""
        from torchtitan.components.loss import ChunkedLossWrapper

        return isinstance(self.criterion, ChunkedLossWrapper)

    def _own_stage(
        self, recorder: StepRecorder, chunk: nn.Module, index: int, total: int, device: Any,
        group: Any, get_mesh: Any,
    ) -> LabelledStage:  # fmt: skip
        return self._stage(chunk, index, total, group, recorder, get_mesh=get_mesh)

    def _stream(self) -> Tensor:
        stream, mesh = super()._stream(), self.parallel.get_optional_mesh("tp")
        if mesh is None:
            return stream
        split = Shard(1) if self.options.sequence_parallel else Replicate()
        return DTensor.from_local(stream, mesh, [split], run_check=False)

    def _made_last(self) -> Tensor:
        return self._stream() if self._makes_no_logits else super()._made_last()

    def _pipeline(self, *others: Any) -> None:
        # Buffers for messages go with the schedule, so that none counts as kept by a layer.
        self._run(
            vars(self).pop("schedule"), loss_kwargs={"global_valid_tokens": torch.tensor(1.0)}
        )

    def _loss(self, mesh: DeviceMesh, logits: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.criterion(logits, targets, torch.tensor(1.0))[0]
        return loss


def launched_config(plan: Plan) -> Any:
    """Return the configuration of the exported script, parsed by torchtitan.

    The program runs without ``torch.compile``.
    """
    from torchtitan.config import ConfigManager

    with TemporaryDirectory() as folder:
        words = words_behind(export(plan, "torchtitan", folder)[0], "torchtitan.train")
        sys.modules.pop(OWN_MODULE, None)
        with patch.object(sys, "path", [folder, *sys.path]):
            config = ConfigManager().parse_args(words)
    config.compile.enable = False
    return config


def _flash(
    self: Any, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor, **others: Any  # noqa: N803
) -> Tensor:  # fmt: skip
    query, key, value = (part.transpose(1, 2) for part in (q_BLNH, k_BLNH, v_BLNH))
    return flash_attention(query, key, value).transpose(1, 2)
