"""A family of published models: the fields of its ``config.json``, and how they become a model.

Fields are checked one by one, all faults at once. A field that is absent takes the documented
default of Hugging Face's configuration class, which the family lists, or it is a fault. A field
that no family reads must be known to change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.registry import Registry
from meshwright.spec.model import LayerSpec, ModelSpec

REQUIRED: Final = object()
"""Stands for "no default": the configuration must state the field."""

MOST_LAYERS: Final = 10_000
"""No published model has a tenth of it; larger is a slip of the keyboard."""
MOST: Final = 2**31 - 1
"""The largest size of one dim: a 32-bit index."""

Kind = Literal["count", "count_or_zero", "flag", "text", "counts", "texts", "section", "anything"]


@dataclass(frozen=True)
class Key:
    """One field of a configuration, as a family reads it."""

    kind: Kind
    default: Any = REQUIRED
    nullable: bool = False
    """``null`` may be written, and means what the family says of it."""
    same_as: str = ""
    """Absent or ``null``: the value of this other field."""
    also: tuple[str, ...] = ()
    """Other names of the same field in published configurations."""
    allowed: tuple[str, ...] = ()
    most: int = MOST
    section: Mapping[str, Key] = field(default_factory=dict)
    """Fields of a nested section."""

    @property
    def is_required(self) -> bool:
        """Whether the configuration must state the field."""
        return self.default is REQUIRED and not self.same_as

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a stated value, or an empty text."""
        if value is None:
            allowed = self.nullable or self.same_as or self.kind == "anything"
            return "" if allowed else f"null; expected {self.expected}"
        return _CHECKS[self.kind](value, self)

    @property
    def expected(self) -> str:
        """What may stand there, in words."""
        if self.kind in ("count", "count_or_zero"):
            least = 1 if self.kind == "count" else 0
            return f"a whole number from {least} to {self.most}"
        words = {
            "flag": "true or false",
            "text": "a text",
            "counts": "a list of whole numbers",
            "texts": "a list of texts",
            "section": "a nested section",
            "anything": "anything",
        }
        among = f", each of {', '.join(self.allowed)}" if self.allowed else ""
        return words[self.kind] + among


def count(default: Any = REQUIRED, **rest: Any) -> Key:
    """Return a field that holds a whole number of at least one."""
    return Key("count", default, **rest)


def count_or_none(**rest: Any) -> Key:
    """Return a field that may be absent or ``null``, which the family interprets."""
    return Key("count", None, nullable=True, **rest)


def count_or_zero(default: Any = REQUIRED, **rest: Any) -> Key:
    """Return a field that holds a whole number of at least zero."""
    return Key("count_or_zero", default, **rest)


def flag(default: Any = REQUIRED) -> Key:
    """Return a field that holds true or false."""
    return Key("flag", default)


def text(*allowed: str, default: Any = REQUIRED) -> Key:
    """Return a field that holds one of the allowed texts."""
    return Key("text", default, allowed=allowed)


def texts_or_none(*allowed: str) -> Key:
    """Return a field that holds a list of the allowed texts, or nothing."""
    return Key("texts", None, nullable=True, allowed=allowed)


def counts_or_none() -> Key:
    """Return a field that holds a list of whole numbers, or nothing."""
    return Key("counts", None, nullable=True)


def names(listed: str) -> frozenset[str]:
    """Return the names of a list that is written as one text."""
    return frozenset(listed.split())


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_count(value: Any, key: Key) -> str:
    least = 1 if key.kind == "count" else 0
    if _is_whole(value) and least <= value <= key.most:
        return ""
    return f"found {shown(value)}; expected {key.expected}"


def _check_flag(value: Any, key: Key) -> str:
    return "" if isinstance(value, bool) else f"found {shown(value)}; expected {key.expected}"


def _check_text(value: Any, key: Key) -> str:
    if not isinstance(value, str):
        return f"found {shown(value)}; expected {key.expected}"
    if key.allowed and value not in key.allowed:
        return f"found {shown(value)}; {nearest(value, key.allowed)}"
    return ""


def _check_counts(value: Any, key: Key) -> str:
    if isinstance(value, list) and all(_is_whole(part) and 0 <= part <= key.most for part in value):
        return ""
    return f"found {shown(value)}; expected {key.expected}"


def _check_texts(value: Any, key: Key) -> str:
    if not isinstance(value, list):
        return f"found {shown(value)}; expected {key.expected}"
    wrong = [part for part in value if not isinstance(part, str) or part not in key.allowed]
    return f"found {shown(wrong[0])}; expected {key.expected}" if wrong else ""


def _check_nothing(value: Any, key: Key) -> str:
    return ""


def _check_section(value: Any, key: Key) -> str:
    return "" if isinstance(value, Mapping) else f"found {shown(value)}; expected {key.expected}"


_CHECKS = {
    "count": _check_count,
    "count_or_zero": _check_count,
    "flag": _check_flag,
    "text": _check_text,
    "counts": _check_counts,
    "texts": _check_texts,
    "section": _check_section,
    "anything": _check_nothing,
}


def shown(value: Any) -> str:
    """Return a value as a message shows it: cut where it is long."""
    try:
        written = repr(value)
    except ValueError:
        return "a number of too many digits"
    return written if len(written) <= 60 else f"{written[:57]}..."


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


class Fields:
    """The fields of one configuration, read by the keys of its family.

    Reading collects faults and never stops at the first; ``finish`` raises them all.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        keys: Mapping[str, Key],
        *,
        family: str,
        origin: str = "",
        prefix: str = "",
        harmless: Iterable[str] = (),
    ) -> None:
        self.family = family
        self.origin = origin
        self.prefix = prefix
        self.faults: list[Fault] = []
        self.defaults: dict[str, Any] = {}
        """Fields that are not stated, and the documented default; None: derived, or absent."""
        self._values: dict[str, Any] = {}
        self._stated: dict[str, str] = {}
        self._read_all(config, keys)
        self._refuse_unknown(config, keys, frozenset(harmless))

    def _read_all(self, config: Mapping[str, Any], keys: Mapping[str, Key]) -> None:
        """Read each key; those that repeat another field come last."""
        for name, key in sorted(keys.items(), key=lambda item: bool(item[1].same_as)):
            stated = [other for other in (name, *key.also) if other in config]
            if not stated:
                self._take_default(name, key)
                continue
            value, self._stated[name] = config[stated[0]], stated[0]
            complaint = key.complaint(value)
            if complaint:
                self.fault(stated[0], complaint)
            elif value is None and key.same_as:
                self._take_default(name, key)
            elif key.kind == "section":
                self._read_section(name, value, key)
            else:
                self._values[name] = value
            for other in stated[1:]:
                if config[other] != value:
                    self.fault(other, f"is {shown(config[other])}, but {stated[0]} is {value!r}")

    def _take_default(self, name: str, key: Key) -> None:
        if key.is_required:
            also = f" (or {', '.join(key.also)})" if key.also else ""
            self.fault(name, f"missing{also}; {self.family} needs {key.expected}")
        elif key.same_as:
            if key.same_as in self._values:
                self._values[name] = self.defaults[name] = self._values[key.same_as]
        elif key.kind == "section":
            self._read_section(name, {}, key)
        else:
            self._values[name] = self.defaults[name] = key.default

    def _read_section(self, name: str, config: Mapping[str, Any], key: Key) -> None:
        """Read a nested section; its values are found as ``section.field``."""
        inner = Fields(config, key.section, family=self.family, prefix=f"{self.prefix}{name}.")
        self.faults += inner.faults
        self._values |= {f"{name}.{part}": value for part, value in inner._values.items()}
        self.defaults |= {f"{name}.{part}": value for part, value in inner.defaults.items()}

    def _refuse_unknown(
        self, config: Mapping[str, Any], keys: Mapping[str, Key], harmless: frozenset[str]
    ) -> None:
        known = {name for key, value in keys.items() for name in (key, *value.also)}
        for name in config:
            if name in known or name in harmless:
                continue
            if not isinstance(name, str):
                self.fault(shown(name), "the name of a field must be a text")
            elif name in FIXED:
                self._require_fixed(name, config[name])
            elif not is_harmless(name):
                self.fault(
                    name,
                    f"unknown to {self.family}, and it might change the structure",
                    nearest(name, known) if known else "",
                )

    def _require_fixed(self, name: str, value: Any) -> None:
        """Record a fault where a field that the family does not read would change it."""
        if not any(type(value) is type(known) and value == known for known in FIXED[name]):
            allowed = " or ".join(repr(known) for known in FIXED[name])
            self.fault(name, f"found {shown(value)}; for {self.family} only {allowed} is modelled")

    def fault(self, name: str, message: str, fix: str = "") -> None:
        """Record one thing wrong with a field."""
        self.faults.append(Fault(f"{self.prefix}{self.stated(name)}", message, fix))

    def stated(self, name: str) -> str:
        """Return the name under which the configuration states a field."""
        return self._stated.get(name, name)

    def require(self, holds: bool, name: str, message: str, fix: str = "") -> None:
        """Record a fault where a rule between fields does not hold."""
        if not holds:
            self.fault(name, message, fix)

    def finish(self) -> None:
        """Raise all faults found so far."""
        if self.faults:
            raise SpecError(self.faults, origin=self.origin)

    def count(self, name: str) -> int:
        """Return a whole number that is there."""
        value = self._values[name]
        assert isinstance(value, int)
        return value

    def count_or_none(self, name: str) -> int | None:
        """Return a whole number, or None where the configuration has none."""
        return None if self._values[name] is None else self.count(name)

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self._values[name])

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._values[name])

    def counts_or_none(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or None."""
        value = self._values[name]
        return None if value is None else list(value)

    def texts_or_none(self, name: str) -> list[str] | None:
        """Return a list of texts, or None."""
        value = self._values[name]
        return None if value is None else list(value)

    def divides(self, divisor: str, name: str) -> None:
        """Record a fault where one field is no multiple of another."""
        whole, part = self.count(name), self.count(divisor)
        self.require(
            whole % part == 0,
            name,
            f"{whole} is not divisible by {self.stated(divisor)} {part}",
            f"the nearest multiple is {max(1, round(whole / part)) * part}",
        )


@dataclass(frozen=True)
class Family:
    """One family; a file in ``families`` registers one or a few of them."""

    model_types: tuple[str, ...]
    """Values of ``model_type`` that it reads."""
    architectures: tuple[str, ...]
    """Values of ``architectures`` that go with them."""
    keys: Mapping[str, Key]
    """Every field that changes the structure."""
    read: Callable[[Fields], ModelSpec]
    harmless: frozenset[str] = frozenset()
    """Further fields that occur in this family and change no dim, count or operator."""
    nested_types: tuple[str, ...] = ()
    """Values of ``model_type`` whose text model stands in ``text_config``."""
    outer_harmless: frozenset[str] = frozenset()
    """Fields next to ``text_config`` that do not concern the text model."""


families: Registry[Family] = Registry("model family")


WINDOWED_LAYERS = ("full_attention", "sliding_attention")

CORE_KEYS: dict[str, Key] = {
    "hidden_size": count(),
    "num_hidden_layers": count(most=MOST_LAYERS),
    "num_attention_heads": count(),
    "vocab_size": count(),
    "max_position_embeddings": count_or_none(),
}
"""Fields that nearly each configuration states under these names."""

GROUPED_KEYS: dict[str, Key] = CORE_KEYS | {
    "intermediate_size": count(),
    "num_key_value_heads": count(same_as="num_attention_heads"),
    "head_dim": count_or_none(),
    "tie_word_embeddings": flag(False),
}
"""Fields of models with grouped key and value heads; ``head_dim`` absent: hidden / heads."""

STATED_KV_KEYS: dict[str, Key] = GROUPED_KEYS | {"num_key_value_heads": count()}
"""The same for classes whose default is a number that fits one published model only."""

WINDOW_KEYS: dict[str, Key] = {"layer_types": texts_or_none(*WINDOWED_LAYERS)}


def read_head_size(
    fields: Fields,
    *,
    hidden: str = "hidden_size",
    heads: str = "num_attention_heads",
    stated: str = "head_dim",
) -> int:
    """Return the stated head size, or hidden over heads, which must then divide."""
    head_size = fields.count_or_none(stated) if stated else None
    if head_size is not None:
        return head_size
    fields.divides(heads, hidden)
    return max(1, fields.count(hidden) // fields.count(heads))


def read_kv_heads(fields: Fields, heads: str = "num_attention_heads") -> int:
    """Return the key and value heads, which must divide the query heads."""
    fields.divides("num_key_value_heads", heads)
    return fields.count("num_key_value_heads")


def read_layer_types(fields: Fields, default: Sequence[str]) -> list[str]:
    """Return the kind of attention of each layer: as stated, or by the rule of the family."""
    stated = fields.texts_or_none("layer_types")
    if stated is None:
        return list(default)
    fields.require(
        len(stated) == len(default),
        "layer_types",
        f"lists {len(stated)} layers, but num_hidden_layers is {len(default)}",
    )
    return stated


def require_top_k(fields: Fields, chosen: str, experts: str) -> None:
    """Record a fault where more experts are chosen than there are."""
    fields.require(
        fields.count(chosen) <= fields.count(experts),
        chosen,
        f"chooses {fields.count(chosen)} of only {fields.count(experts)} experts ({experts})",
    )


def build_model(
    fields: Fields,
    layers: Sequence[LayerSpec],
    *,
    hidden: str = "hidden_size",
    notes: Sequence[str] = (),
    **rest: Any,
) -> ModelSpec:
    """Return the model of a row of layers; raises all faults that the family has recorded."""
    fields.finish()
    kinds = tuple(dict.fromkeys(layers))
    index = {kind: place for place, kind in enumerate(kinds)}
    tied = fields.flag("tie_word_embeddings") if "tied_embeddings" not in rest else None
    if tied is not None:
        rest["tied_embeddings"] = tied
    return ModelSpec(
        name=fields.family,
        architecture=fields.family,
        hidden_size=fields.count(hidden),
        vocab_size=fields.count("vocab_size"),
        layer_kinds=kinds,
        layer_pattern=tuple(index[layer] for layer in layers),
        conventions=(_head_note(rest["tied_embeddings"]), *notes, *_default_notes(fields)),
        **rest,
    )


def _head_note(tied: bool) -> str:
    if tied:
        return "tied head: logits share the embedding, which is counted once"
    return "separate head: counted in addition to the embedding"


def _default_notes(fields: Fields) -> tuple[str, ...]:
    """Return which fields are not stated, and what holds instead."""
    taken = [f"{name} = {_written(v)}" for name, v in fields.defaults.items() if v is not None]
    derived = [name for name, value in fields.defaults.items() if value is None]
    lines = []
    if taken:
        lines.append(f"not stated, default of the configuration class: {', '.join(taken)}")
    if derived:
        lines.append(f"not stated, so derived by the rule of the family: {', '.join(derived)}")
    return tuple(lines)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
