"""A model of transformers under accelerate, run dry: its plugins, its wrapping, its loss.

The files of ``export accelerate`` go through accelerate's own launcher; what that launcher sets is
the environment of the rank. A pass is that of the Trainer: gradients are summed after the last
micro-batch, or after each where the files say so, and the loss makes all logits in FP32.

Source: accelerate 1.15 (2026-11), ``commands/launch.py``, ``state.py``, ``utils/fsdp_utils.py``;
transformers 5.23 (2026-11), ``trainer.py``, ``loss/loss_utils.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from meshwright.catalog.config_json import config_of
from meshwright.frameworks.hugging_face import EACH_BATCH
from meshwright.frameworks.launch import micro_batches
from meshwright.frameworks.registry import export
from meshwright.run.dry.fakes import DEVICE, Replicated
from meshwright.run.dry.launched import words_behind
from meshwright.run.dry.program import RankProgram
from meshwright.run.step_recorder import StepRecorder


def _accumulation(words: list[str]) -> dict[str, Any]:
    """Return the accumulation of gradients that options of the Trainer state."""
    from transformers.trainer_pt_utils import AcceleratorConfig

    stated = [after for word, after in pairwise(words) if word == "--accelerator_config"]
    config = AcceleratorConfig(**json.loads(stated[0] if stated else "{}"))
    return dict(config.gradient_accumulation_kwargs or {})


class AccelerateProgram(RankProgram):
    """One rank of a plan under accelerate, as its exported files start it."""

    framework = "accelerate"
    packages = ("accelerate", "transformers")

    @property
    def sums_last(self) -> bool:
        """Whether gradients are summed after the last micro-batch alone, as the Trainer decides."""
        return not self.accelerator.gradient_state.plugin_kwargs.get(EACH_BATCH, False)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Set the environment of the rank, with the ``fake`` backend."""
        from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
        from transformers import masking_utils

        def backend(*args: Any) -> tuple[str, DistributedType]:
            return "fake", DistributedType.MULTI_GPU

        with (
            patch.dict(os.environ, self._environment()),
            patch.object(PartialState, "_prepare_backend", backend),
            # Fake tensors have no values to tell that no token is masked.
            patch.object(masking_utils, "is_tracing", lambda *tensors: False),
            patch.object(masking_utils, "fast_all", lambda mask: True),
            patch.object(nn.parallel, "DistributedDataParallel", Replicated),
        ):
            try:
                yield
            finally:
                AcceleratorState._reset_state(reset_partial_state=True)
                GradientState._reset_state()

    def _environment(self) -> dict[str, str]:
        """Return the variables that the launcher sets for this rank."""
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils.launch import prepare_multi_gpu_env

        with TemporaryDirectory() as folder:
            script, config = export(self.plan, "accelerate", folder)
            words = words_behind(script, "launch")
            words = [word.replace(config.name, str(config)) for word in words]
            args = _validate_launch_command(launch_command_parser().parse_args(words))[0]
            self.accumulation = _accumulation(args.training_script_args)
            local = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": 0}
            return prepare_multi_gpu_env(args) | {
                "ACCELERATE_TORCH_DEVICE": DEVICE, "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
                **{name: f"{number}" for name, number in local.items()},
            }  # fmt: skip

    def _groups(self, mesh: DeviceMesh) -> dict[str, DeviceMesh]:
        from accelerate import Accelerator
        from accelerate.utils import GradientAccumulationPlugin

        groups = super()._groups(mesh)
        plugin = GradientAccumulationPlugin(num_steps=micro_batches(self.plan), **self.accumulation)
        self.accelerator = Accelerator(device_placement=False, gradient_accumulation_plugin=plugin)
        own = self.accelerator.torch_device_mesh
        if own is None:
            whole = groups["gradients"].get_group().group_name
            self._axis_of[torch.distributed.group.WORLD.group_name] = self._axis_of[whole]
        else:
            axes = self.accelerator.parallelism_config.fsdp_dim_names
            for name in (*own.mesh_dim_names, *axes):
                self._axis_of[own[name].get_group().group_name] = name.removesuffix("_cp")
        return groups

    def _chunks(
        self, mesh: DeviceMesh, groups: dict[str, DeviceMesh], recorder: StepRecorder
    ) -> list[nn.Module]:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        stated = dict(config_of(self.plan.model) or {})
        config = CONFIG_MAPPING[stated["model_type"]].from_dict(stated)
        config.use_cache = False
        model = AutoModelForCausalLM.from_config(config)
        if self.options.recompute == "full" and not self.is_sharded:
            model.gradient_checkpointing_enable()
        model, _ = self.accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        return [model.train()]

    @contextmanager
    def _without_sums(self, chunk: Any) -> Iterator[None]:
        with self.accelerator.no_sync(chunk):
            yield

    def _made(self, chunk: nn.Module, tokens: Tensor) -> Tensor:
        """Return the loss, which models of transformers compute themselves."""
        mask = torch.ones_like(tokens)
        made: Tensor = chunk(
            input_ids=tokens, labels=tokens, attention_mask=mask, num_items_in_batch=1
        ).loss
        return made

    def _loss(self, mesh: DeviceMesh, logits: Tensor, targets: Tensor) -> Tensor:
        return logits
