"""Public programs that make wide graphs: `fuse benchmarks/programs.py:swin --on SN10`.

Modules of torchvision and transformers without weights, each with its inputs.
"""

import sys
from pathlib import Path

import torch
import transformers
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from public_models import image_model

Program = tuple[nn.Module, tuple[torch.Tensor, ...]]


def swin(batch: int = 8) -> Program:
    """Return Swin-T and images."""
    module, inputs, _ = image_model("swin_t", batch=batch, device="meta")
    return module, inputs


def mamba(tokens: int = 16) -> Program:
    """Return two layers of Mamba 130M, whose reference code has one step for each token."""
    config = transformers.MambaConfig(
        hidden_size=768, state_size=16, num_hidden_layers=2, vocab_size=50280, use_cache=False
    )
    return _language(transformers.MambaForCausalLM, config, tokens)


def qwen3(tokens: int = 2048) -> Program:
    """Return two layers of Qwen3 8B."""
    config = transformers.Qwen3Config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, use_cache=False,
    )  # fmt: skip
    return _language(transformers.Qwen3ForCausalLM, config, tokens)


def _language(kind: type[nn.Module], config: transformers.PretrainedConfig, tokens: int) -> Program:
    with torch.device("meta"):
        return kind(config).eval(), (torch.zeros(1, tokens, dtype=torch.int64),)
