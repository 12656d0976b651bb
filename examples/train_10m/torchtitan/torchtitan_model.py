# named by the script beside it; MODEL is the config.json of the model,
# rotary base, data, tokenizer and learning rate are to be set below

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer

LENGTH = 256
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 16384,
    "max_position_embeddings": 512,
    "intermediate_size": 704,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
}

from torchtitan.models import llama3 as family
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm


def build(attn_backend, **_):
    dim, vocab_size = MODEL["hidden_size"], MODEL["vocab_size"]
    is_tied = MODEL["tie_word_embeddings"]
    return family.Llama3Model.Config(
        dim=dim,
        vocab_size=vocab_size,
        enable_weight_tying=is_tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size,
            embedding_dim=dim,
            param_init=family._EMBEDDING_SKIP_INIT if is_tied else family._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=family._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim, out_features=vocab_size, param_init=family._output_linear_init(dim)
        ),
        layers=family._build_llama3_layers(
            n_layers=MODEL["num_hidden_layers"],
            dim=dim,
            n_heads=MODEL["num_attention_heads"],
            n_kv_heads=MODEL["num_key_value_heads"],
            hidden_dim=MODEL["intermediate_size"],
            attn_backend=attn_backend,
            rope=ComplexRoPE.Config(
                dim=MODEL["head_dim"], max_seq_len=LENGTH, theta=500000, scaling="llama"
            ),
        ),
    )


FLAVORS = family.llama3_configs
FLAVORS["own"] = build


def train():
    spec = family.model_registry("own", converters=None)
    loss = CrossEntropyLoss.Config(global_vocab_size=MODEL["vocab_size"])
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
        hf_assets_path="./assets/hf/own",
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
