"""Fields of a configuration that never change a dim, a count or an operator.

A field that is neither here nor read by the family is a fault: it might change the structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meshwright.catalog.huggingface.keys import names

HARMLESS: Final = names("""
    architectures model_type transformers_version torch_dtype dtype auto_map name_or_path
    _name_or_path _attn_implementation _attn_implementation_autoset _commit_hash
    attn_implementation attribute_map base_model_tp_plan base_model_pp_plan
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id mask_token_id
    decoder_start_token_id begin_suppress_tokens suppress_tokens forced_bos_token_id
    forced_eos_token_id prefix bad_words_ids tokenizer_class task_specific_params
    use_cache use_return_dict return_dict return_dict_in_generate output_attentions
    output_hidden_states output_scores output_router_logits torchscript use_bfloat16
    initializer_range initializer_factor init_std init_method_std
    hidden_act hidden_activation activation_function activation
    attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop emb_pdrop dropout
    activation_dropout attention_dropout_prob hidden_dropout_prob resid_dropout classifier_dropout
    layerdrop embedding_dropout
    rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps layernorm_epsilon
    router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux
    pretraining_tp tensor_parallel tp_plan ep_size chunk_size_feed_forward
    gradient_checkpointing use_parallel_embedding
    quantization_config quantization compression_config
    id2label label2id num_labels problem_type finetuning_task
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size num_return_sequences exponential_decay_length_penalty
    remove_invalid_values
    partial_rotary_factor rotary_pct rotary_emb_base rotary_dim original_max_position_embeddings
    tf_legacy_loss use_mamba_kernels onnx_export cache_implementation output_past
    """)

HARMLESS_PREFIXES: Final = ("rope_",)
"""Rotary tables hold no parameters and cost one elementwise pass, whatever their base."""

FIXED: Final[Mapping[str, tuple[Any, ...]]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "lm_head_bias": (False,),
    "full_attn_mod": (1,),
    "sliding_window": (None,),
    "n_inner": (None,),
}
"""Fields that would change the structure of a family that does not read them, and the values that
leave it as it is."""


def is_harmless(name: str) -> bool:
    """Return whether a field never changes the structure."""
    return name in HARMLESS or name.startswith(HARMLESS_PREFIXES)
