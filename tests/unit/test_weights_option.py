"""``--weights`` with a format of quantised checkpoints: serving, and frozen weights in training."""

import json

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.huggingface.quantization import USUAL

SERVED = {"on": "4xA100", "batch": 16, "context": 4096, "tp": 4, "pp": 1}
TRAINED = {"on": "8xRTX4090", "seq": 2048, "global_batch": 16, "optimizer": "adapters", "zero": 3}
BYTES = {"int4": 0.5 + 2 / 128, "awq": 0.5 + 2.5 / 128, "gptq": 0.5 + 2.5 / 128,
         "nf4": 0.5 + 4 / 64, "nf4-double": 0.5 + 1 / 64 + 4 / 16384, "bnb-int8": 1.0}  # fmt: skip
"""Of a weight, with scales and zero points of 128 (nf4: of 64, or these in 8 bits)."""
LAYERS, VOCABULARY = 32 * 218_103_808, 2 * 128_256 * 4096
"""Weights of Llama 3 8B: products of its layers; embedding and logits stay in 16 bits."""


def weights(found):
    return found.best.estimate.memory_parts_bytes["weights_bytes"]


@pytest.mark.parametrize("name", USUAL)
def test_weights_have_the_bytes_of_the_format(name):
    found = mw.serve("llama3-8b", **SERVED, weights=name)
    expected = (LAYERS * BYTES[name] + VOCABULARY * 2.0) / 4
    assert weights(found) == pytest.approx(expected, rel=2e-3)


def test_frozen_weights_rest_in_the_format():
    wide, narrow = (mw.estimate("llama3-8b", **TRAINED, weights=name) for name in (None, "nf4"))
    share = (LAYERS * BYTES["nf4"] + VOCABULARY * 2.0) / (2.0 * (LAYERS + VOCABULARY))
    assert weights(narrow) / weights(wide) == pytest.approx(share, rel=2e-3)


def test_it_is_the_format_of_a_checkpoint_that_says_so(tmp_path):
    """A copy of the catalog's model with the same section has the same price."""
    fields = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "quantization_config": USUAL["awq"],
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    own = mw.serve(str(path), **SERVED)
    for stated in (mw.serve("llama3-8b", **SERVED, weights="awq"),
                   mw.serve(str(path), **SERVED, weights="awq")):  # fmt: skip
        assert weights(stated) == weights(own)
        assert stated.best.estimate.latency_s == own.best.estimate.latency_s


@pytest.mark.parametrize(
    ("options", "text"),
    [({"weights": "fp8"}, "frozen weights rest"),
     ({"weights": "nf4", "optimizer": "megatron-adam"}, "trains the weights themselves"),
     ({"weights": "int3"}, "int4")],
)  # fmt: skip
def test_what_is_not_trained_in_is_said(options, text):
    with pytest.raises(SpecError, match=text):
        mw.estimate("llama3-8b", **(TRAINED | options))


def test_a_server_that_quantises_is_read(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text(
        "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 4 --max-model-len 4096 "
        "--max-num-seqs 16 --quantization awq\n",
        encoding="utf-8",
    )
    found = mw.estimate(str(path), on="4xA100")
    assert found.model.weight_format.name == "AWQ, 4 bits"


SFT = (
    "torchrun --nproc_per_node 8 sft.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048 "
    "--gradient_checkpointing "
)


@pytest.mark.parametrize(
    ("words", "name"),
    [("--load_in_4bit", "bitsandbytes nf4"),
     ("--load_in_4bit --use_bnb_nested_quant", "bitsandbytes nf4 with narrow scales"),
     ("--load_in_8bit", "bitsandbytes int8")],
)  # fmt: skip
def test_a_trainer_with_narrow_frozen_weights_is_read(tmp_path, words, name):
    path = tmp_path / "sft.sh"
    path.write_text(f"{SFT}--use_peft {words}\n", encoding="utf-8")
    found = mw.estimate(str(path), on="8xA100")
    assert found.model.weight_format.name == name
    assert found.workload.optimizer.name == "adapters"
    wide = 2.0 * (LAYERS + VOCABULARY)
    assert 0.3 * wide < weights(found) < 0.65 * wide


def test_a_trainer_does_not_train_narrow_weights_themselves(tmp_path):
    path = tmp_path / "sft.sh"
    path.write_text(f"{SFT}--load_in_4bit\n", encoding="utf-8")
    with pytest.raises(SpecError, match="load_in_4bit"):
        mw.estimate(str(path), on="8xA100")
