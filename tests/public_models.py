"""Public architectures with random or no weights, and example inputs: what users would import."""

import functools
import sys

import torch

try:
    from torchvision import models as vision
except RuntimeError:
    # wheels of torchvision hold operators for the CUDA build of PyTorch; beside a CPU build they
    # cannot be loaded, and without these two the package does not import
    detection = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        detection.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    from torchvision import models as vision
import transformers
from torch import nn


def image_model(name, batch=1, size=224, device="cpu"):
    """Return a model of torchvision and an image."""
    with torch.device(device):
        found = vision.get_model(name, weights=None, **IMAGE_OPTIONS.get(name, {}))
        return found.eval(), (torch.zeros(batch, 3, size, size),), {}


IMAGE_OPTIONS = {
    "fcn_resnet50": {"weights_backbone": None},
    "inception_v3": {"init_weights": False},
}
TOKENS = 16
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts": 6, "num_local_experts": 6,
    "num_experts_per_tok": 2, "vocab_size": 500, "use_cache": False,
}  # fmt: skip
LATENT = {
    "n_routed_experts": 6, "n_group": 2, "topk_group": 1,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
LANGUAGE_MODELS = {
    "Llama": {}, "Qwen3": {}, "Gemma2": {}, "Mixtral": {}, "Qwen2Moe": {}, "Qwen3Moe": {},
    "GptOss": {}, "DeepseekV3": LATENT,
}  # fmt: skip
EXPERTS = ("Mixtral", "Qwen2Moe", "Qwen3Moe", "GptOss", "DeepseekV3")


def language_model(name, batch=2, tokens=TOKENS, experts="eager", device="cpu"):
    """Return a causal language model of transformers, small but whole, and tokens."""
    options = {**SMALL, **LANGUAGE_MODELS[name]}
    if name == "GptOss":
        options["layer_types"] = ["sliding_attention", "full_attention"]
    config = getattr(transformers, f"{name}Config")(**options)
    with torch.device(device):
        model = getattr(transformers, f"{name}ForCausalLM")._from_config(
            config, **({"experts_implementation": experts} if name in EXPERTS else {})
        )
        return model.eval(), (torch.zeros(batch, tokens, dtype=torch.int64),), {}


def encoder(name):
    """Return BERT, or FNet, which mixes tokens by Fourier transforms."""
    config = getattr(transformers, f"{name}Config")(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        vocab_size=500,
    )  # fmt: skip
    model = getattr(transformers, f"{name}Model")(config).eval()
    return model, (torch.zeros(2, TOKENS, dtype=torch.int64),), {}


def t5():
    """Return an encoder and a decoder."""
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=500, use_cache=False
    )
    ids = torch.zeros(2, TOKENS, dtype=torch.int64)
    model = transformers.T5ForConditionalGeneration(config).eval()
    return model, (), {"input_ids": ids, "decoder_input_ids": ids[:, :6]}


def whisper():
    """Return sound by convolutions, and text that attends to it."""
    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=500,
        max_source_positions=20, use_cache=False, pad_token_id=1,
    )  # fmt: skip
    ids = torch.zeros(1, 6, dtype=torch.int64)
    model = transformers.WhisperModel(config).eval()
    return model, (torch.zeros(1, 80, 40),), {"decoder_input_ids": ids}


def mamba():
    """Return a state space model, whose reference code has one step for each token."""
    config = transformers.MambaConfig(
        hidden_size=64, state_size=8, num_hidden_layers=2, vocab_size=500, use_cache=False
    )
    model = transformers.MambaForCausalLM(config).eval()
    return model, (torch.zeros(1, 4, dtype=torch.int64),), {}


class Sequence(nn.Module):
    """Recurrent layers between an embedding and a head."""

    def __init__(self, kind, **options):
        super().__init__()
        self.rows, self.layers = nn.Embedding(500, 32), kind(32, 48, 2, **options)
        self.head = nn.Linear(48 * (2 if options.get("bidirectional") else 1), 500)

    def forward(self, ids):
        return self.head(self.layers(self.rows(ids))[0])


def sequence(kind, **options):
    """Return a recurrent model and tokens."""
    return Sequence(kind, **options).eval(), (torch.zeros(3, 10, dtype=torch.int64),), {}


BUILD = {
    **{name: functools.partial(image_model, name) for name in (
        "resnet18", "resnet50", "mobilenet_v3_small", "efficientnet_b0", "densenet121",
        "regnet_y_400mf", "fcn_resnet50",
    )},
    **{name: functools.partial(image_model, name, device="meta") for name in (
        "vgg16", "convnext_tiny", "swin_t", "swin_v2_t", "vit_b_16",
    )},
    **{name: functools.partial(language_model, name) for name in LANGUAGE_MODELS},
    "Bert": functools.partial(encoder, "Bert"), "FNet": functools.partial(encoder, "FNet"),
    "T5": t5, "Whisper": whisper, "Mamba": mamba,
    "LSTM": functools.partial(sequence, nn.LSTM, bidirectional=True, batch_first=True),
    "GRU": functools.partial(sequence, nn.GRU, batch_first=True),
}  # fmt: skip
