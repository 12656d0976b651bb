"""A model of megatron-core with local layers, run dry: its parser, its model, its optimizer.

The script of ``export megatron`` goes through Megatron-LM's own parser. Its layers are those that
megatron-core has without Transformer Engine; the norms that only kernels provide, and flash
attention, are PyTorch's, which keep the same tensors. CUDA streams, events and random states
do nothing here.

Source: megatron-core 0.19.2 (2026-11), ``models/gpt``, ``distributed``, ``optimizer``,
``pipeline_parallel/schedules.py``; Megatron-LM ``megatron/training/arguments.py``.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import typing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from meshwright.frameworks.launch import micro_batches
from meshwright.frameworks.registry import export
from meshwright.graph.op import Phase
from meshwright.run.dry.fakes import DEVICE
from meshwright.run.dry.launched import words_behind
from meshwright.run.dry.program import RankProgram, with_moments
from meshwright.run.moments import Category, Counts, StepPart
from meshwright.run.recorder import Label
from meshwright.run.step_recorder import StepRecorder

UNFUSED = (
    "--transformer-impl", "local", "--no-rope-fusion", "--no-masked-softmax-fusion",
    "--no-persist-layer-norm", "--no-gradient-accumulation-fusion", "--clip-grad", "0",
    "--lr", "1e-4",
)  # fmt: skip
"""Options that switch off CUDA kernels, and gradient clipping, which reads values."""


class MegatronProgram(RankProgram):
    """One rank of a plan in megatron-core, as its exported script starts it."""

    framework = "megatron"
    packages = ("megatron-core", "megatron-bridge")
    installed_by = "megatron-bridge==0.6.2"
    note = (
        "layers of megatron-core without Transformer Engine: fused kernels are absent, and "
        "PyTorch's norm and flash attention stand for theirs; gradients are not clipped"
    )

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Provide a CUDA device without hardware: its streams do nothing."""
        typing.override = getattr(typing, "override", lambda method: method)  # type: ignore
        logging.getLogger("megatron").setLevel(logging.ERROR)
        sizes = SimpleNamespace(major=9, minor=0, multi_processor_count=132, name=DEVICE)
        known: dict[str, Any] = {
            "get_device_capability": (9, 0), "get_device_properties": sizes,
            "current_device": DEVICE, "current_stream": MagicMock(), "synchronize": None,
        }  # fmt: skip
        with ExitStack() as stack:
            local = {"WORLD_SIZE": f"{self.world_size}", "RANK": f"{self.rank}", "LOCAL_RANK": "0",
                     "CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # fmt: skip
            stack.enter_context(patch.dict(os.environ, local))
            stack.enter_context(patch.object(torch.cuda, "Stream", MagicMock()))
            for name, answer in known.items():
                stack.enter_context(patch.object(torch.cuda, name, MagicMock(return_value=answer)))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._stand_in(stack)
            yield

    def _stand_in(self, stack: ExitStack) -> None:
        """Replace the parts of megatron-core that need a CUDA device."""
        from megatron.core import parallel_state
        from megatron.core.distributed import param_and_grad_buffer
        from megatron.core.optimizer import optimizer
        from megatron.core.pipeline_parallel import p2p_communication
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer.dot_product_attention import DotProductAttention
        from megatron.core.transformer.torch_norm import WrappedTorchNorm

        for where, name, stand_in in (
            (random.CudaRNGStatesTracker, "fork", lambda *names: nullcontext()),
            (random, "_get_all_rng_states", lambda: ()),
            (random, "_set_all_rng_states", lambda *states: None),
            (param_and_grad_buffer, "_coalescing_manager", _one_by_one),
            (WrappedTorchNorm, "__new__", _norm),
            (DotProductAttention, "forward", _flash),
            (p2p_communication, "_p2p_ops", self._sending(p2p_communication._p2p_ops)),
            (p2p_communication, "_batched_p2p_ops",
             self._sending(p2p_communication._batched_p2p_ops)),
            (optimizer, "get_grad_norm_fp32", lambda *gradients, **others: 0.0),
            (torch.distributed, "all_gather_object", _same_everywhere),
            (nn.Module, "bfloat16", lambda module: module),  # all weights are BF16 as they are
            (Tensor, "cuda", lambda tensor, *others: tensor),
            (Tensor, "type", lambda tensor: _TYPES[tensor.dtype]),
        ):  # fmt: skip
            stack.enter_context(patch.object(where, name, stand_in))
        stack.callback(parallel_state.destroy_model_parallel)

    def _sending(self, send: Any) -> Any:
        """Return a function that labels the sends between stages."""

        def sent(**options: Any) -> Any:
            for name, phase in (("next", Phase.FORWARD), ("prev", Phase.INPUT_GRADIENT)):
                if (tensor := options[f"tensor_send_{name}"]) is not None:
                    self.recorder.expect(tensor, Label("pp", "stage boundary", phase))
            return send(**options)

        return sent

    def _groups(self, mesh: DeviceMesh) -> dict[str, DeviceMesh]:
        from megatron.core import parallel_state

        groups = super()._groups(mesh)
        self.args = self._parsed()
        parallel_state.initialize_model_parallel(
            self.sizes["tp"], self.sizes["pp"], self.args.virtual_pipeline_model_parallel_size,
            create_gloo_process_groups=False,
            num_distributed_optimizer_instances=self.args.num_distributed_optimizer_instances,
        )  # fmt: skip
        data = self._axis_of[groups["gradients"].get_group().group_name]
        for found, axis in (
            (parallel_state.get_tensor_model_parallel_group(), "tp"),
            (parallel_state.get_pipeline_model_parallel_group(), "pp"),
            (parallel_state.get_data_parallel_group(with_context_parallel=True), data),
        ):
            self._axis_of[found.group_name] = axis
        return groups

    def _parsed(self) -> Any:
        """Return the arguments of the script, parsed and checked by Megatron-LM."""
        from megatron.training.arguments import parse_args, validate_args

        with TemporaryDirectory() as folder:
            words = words_behind(export(self.plan, "megatron", folder)[0], "pretrain_gpt.py")
        with patch.object(sys, "argv", ["", *words, *UNFUSED]), redirect_stdout(io.StringIO()):
            args = parse_args()
            validate_args(args)
        return args

    def _chunks(
        self, mesh: DeviceMesh, groups: dict[str, DeviceMesh], recorder: StepRecorder
    ) -> list[nn.Module]:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
        )
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.transformer.module import Float16Module
        from megatron.training.argument_utils import core_transformer_config_from_args
        from megatron.training.vocab_utils import calculate_padded_vocab_size

        self.recorder, args = recorder, self.args
        self.config = config = core_transformer_config_from_args(args)
        config.perform_initialization = False
        kinds = get_gpt_layer_local_spec(
            normalization=args.normalization, qk_layernorm=args.qk_layernorm
        )
        words = calculate_padded_vocab_size(
            args.vocab_size, args.make_vocab_size_divisible_by, self.sizes["tp"], False
        )
        recorder.vocab_sizes |= {words, words // self.sizes["tp"]}
        chunks: list[nn.Module] = []
        total = self.sizes["pp"] * self.sizes["num_virtual_stages"]
        for place in range(self.sizes["num_virtual_stages"]):
            index = self.stage + place * self.sizes["pp"]
            model = GPTModel(
                config, kinds, words, args.max_position_embeddings, pre_process=index == 0,
                post_process=index == total - 1, position_embedding_type="rope",
                share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                vp_stage=place if args.virtual_pipeline_model_parallel_size else None,
            )  # fmt: skip
            over_data = DistributedDataParallelConfig(
                grad_reduce_in_fp32=args.accumulate_allreduce_grads_in_fp32,
                overlap_grad_reduce=args.overlap_grad_reduce,
                overlap_param_gather=args.overlap_param_gather,
                use_distributed_optimizer=args.use_distributed_optimizer,
                num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            )
            chunks.append(DistributedDataParallel(config, over_data, Float16Module(config, model)))
        return chunks

    def _optimizer(self, modules: Any, groups: dict[str, DeviceMesh]) -> Any:
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        args = self.args
        config = OptimizerConfig(
            lr=args.lr, bf16=args.bf16, params_dtype=args.params_dtype, clip_grad=args.clip_grad,
            use_distributed_optimizer=args.use_distributed_optimizer,
        )  # fmt: skip
        found = get_megatron_optimizer(config, list(modules), use_gloo_process_groups=False)
        for one in found.chained_optimizers:
            for part in one.optimizer.param_groups:  # on a GPU: FusedAdam of Transformer Engine
                part |= {"fused": True, "foreach": False}
            with_moments(one.optimizer)
        return found

    def _tag_resident(self, recorder: StepRecorder, modules: Any, optimizer: Any) -> None:
        recorder.tag(modules.parameters(), Category.WEIGHTS)
        for chunk in modules:
            recorder.tag([part.grad_data for part in chunk.buffers], Category.GRADIENTS)
        for one in optimizer.chained_optimizers:
            inner = one.optimizer
            recorder.tag((w for part in inner.param_groups for w in part["params"]),
                         Category.STATES)  # fmt: skip
            recorder.tag((v for state in inner.state.values() for v in state.values()),
                         Category.STATES)  # fmt: skip

    def _passes(self, chunks: Sequence[Any], mesh: DeviceMesh, recorder: StepRecorder) -> Counts:
        """Run all micro-batches in the order of Megatron's schedule."""
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.pipeline_parallel import get_forward_backward_func

        config, tokens = self.config, self._tokens()

        def finalize(*others: Any, **named: Any) -> None:
            with recorder.during(StepPart.BACKWARD):
                finalize_model_grads(*others, **named)

        config.finalize_model_grads_func = finalize
        unsynced = [chunk.no_sync for chunk in chunks]
        config.no_sync_func = unsynced if len(chunks) > 1 else unsynced[0]
        get_forward_backward_func()(
            forward_step_func=lambda data, chunk: (chunk(tokens, tokens, None, labels=tokens),
                                                   lambda losses: (losses.mean(), {})),
            data_iterator=[None] * len(chunks), model=list(chunks),
            num_microbatches=micro_batches(self.plan), seq_length=self.work.sequence_length,
            micro_batch_size=self.sizes["micro_batch_size"], forward_only=False,
        )  # fmt: skip
        return recorder.counts()

    def _tokens(self) -> Tensor:
        tokens = torch.zeros(self.sizes["micro_batch_size"], self.local_length, dtype=torch.int64)
        self.recorder.tag([tokens], Category.TEMPORARY)
        return tokens

    def _tag_gradients(self, recorder: StepRecorder, modules: nn.Module) -> None:
        """Do nothing: gradients are views of a buffer, which has its category."""


_TYPES = {torch.bfloat16: "torch.cuda.BFloat16Tensor", torch.float32: "torch.cuda.FloatTensor",
          torch.float16: "torch.cuda.HalfTensor"}  # fmt: skip


def _norm(kind: type, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> nn.Module:
    is_rms = config.normalization == "RMSNorm"
    made = (nn.RMSNorm if is_rms else nn.LayerNorm)(hidden_size, eps, dtype=config.params_dtype)
    for weight in made.parameters():
        weight.sequence_parallel = config.sequence_parallel
    return made


def _flash(self: Any, query: Tensor, key: Tensor, value: Tensor, *others: Any, **named: Any) -> Any:
    query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
    made = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    return made.permute(2, 0, 1, 3).flatten(-2)


@contextmanager
def _one_by_one(*others: Any, **named: Any) -> Iterator[Any]:
    """Send messages one by one, not coalesced."""
    yield SimpleNamespace(wait=lambda: None)


def _same_everywhere(found: list[Any], one: Any, group: Any = None) -> None:
    found[:] = [one] * len(found)
