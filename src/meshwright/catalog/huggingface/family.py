"""A family of published models: the fields of its ``config.json``, and their conversion to a model.

A family lists its fields by their meaning (``num_hidden_layers``) with the names under which
configurations state them (``n_layer``). Fields are checked one by one, all faults at once. A field
that is absent takes the documented default of Hugging Face's configuration class, which the family
lists, or it is a fault. A field that no family reads must be known to change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.base.registry import Registry
from meshwright.catalog.files import shown
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

REQUIRED: Final = object()
"""Stands for "no default": the configuration must state the field."""

MOST_LAYERS: Final = 10_000
"""Most layers of a model: no published one has a tenth of it, so a larger number is an error."""
MOST: Final = 2**31 - 1
"""The largest size of one dim: a 32-bit index."""

Kind = Literal[
    "count",
    "count_or_zero",
    "index",
    "flag",
    "text",
    "pattern",
    "counts",
    "texts",
    "section",
    "anything",
]
Rule = tuple[Literal["divides", "at_most", "equals", "one_for_each"], str]
"""Relation that a field must have to another one; ``one_for_each``: a list of that length."""

_IN_WORDS: Final[Mapping[Kind, str]] = {
    "flag": "true or false", "text": "a text", "counts": "a list of whole numbers",
    "index": "the number of a layer, or -1 for the last",
    "pattern": "a whole number of at least one, or letters L and G",
    "texts": "a list of texts", "section": "a nested section", "anything": "anything",
}  # fmt: skip


@dataclass(frozen=True)
class ConfigKey:
    """One field of a configuration, as a family reads it."""

    kind: Kind
    default: object = REQUIRED
    nullable: bool = False
    """Whether ``null`` may be written; the family defines its meaning."""
    names: tuple[str, ...] = ()
    """Names in configurations, the usual one first; none: the name in the table."""
    same_as: str = ""
    """Other field with the value to use where this one is absent or ``null``."""
    rule: Rule | None = None
    allowed: tuple[str, ...] = ()
    most: int = MOST
    section: Mapping[str, ConfigKey] = field(default_factory=dict)
    """Fields of a nested section."""

    @property
    def is_required(self) -> bool:
        """Whether the configuration must state the field."""
        return self.default is REQUIRED and not self.same_as

    def complaint(self, value: Any) -> str:
        """Return the fault of a stated value; empty: none."""
        if value is None:
            allowed = self.nullable or self.same_as or self.kind == "anything"
            return "" if allowed else f"null; expected {self.expected}"
        is_list, fix = isinstance(value, list), f"expected {self.expected}"
        match self.kind:
            case "count" | "count_or_zero":
                is_right = _is_whole(value, int(self.kind == "count"), self.most)
            case "index":
                is_right = _is_whole(value, -1, MOST_LAYERS)
            case "pattern":
                is_text = isinstance(value, str) and value != "" and not set(value) - set("LG")
                is_right = is_text or _is_whole(value, 1, MOST_LAYERS)
            case "flag":
                is_right = isinstance(value, bool)
            case "text":
                is_right = isinstance(value, str)
                if is_right and self.allowed and value not in self.allowed:
                    is_right, fix = False, nearest(value, self.allowed)
            case "counts":
                is_right = is_list and all(_is_whole(part, 0, self.most) for part in value)
            case "texts":
                wrong = [part for part in value if part not in self.allowed] if is_list else [value]
                is_right, value = not wrong, (wrong or [value])[0]
            case _:
                is_right = self.kind == "anything" or isinstance(value, Mapping)
        return "" if is_right else f"found {shown(value)}; {fix}"

    @property
    def expected(self) -> str:
        """Words for the values that are allowed."""
        if self.kind in ("count", "count_or_zero"):
            return f"a whole number from {int(self.kind == 'count')} to {self.most}"
        among = f", each of {', '.join(self.allowed)}" if self.allowed else ""
        return _IN_WORDS[self.kind] + among


count = partial(ConfigKey, "count")
"""A field that holds a whole number of at least one."""
count_or_none = partial(ConfigKey, "count", default=None, nullable=True)
"""A field that holds a whole number of at least one, or is absent or ``null``."""
count_or_zero = partial(ConfigKey, "count_or_zero")
"""A field that holds a whole number of at least zero."""
flag = partial(ConfigKey, "flag")
"""A field that holds true or false."""
counts_or_none = partial(ConfigKey, "counts", None, nullable=True)
"""A field that holds a list of whole numbers, or nothing."""


def num_experts(usual: str = "num_experts", default: object = REQUIRED) -> ConfigKey:
    """Return the field of the routed experts, by the name that is usual in a family.

    Transformers 5 writes some families anew under the name of others.

    Source: huggingface/transformers v5, ``attribute_map`` of ``configuration_qwen3_moe.py`` and
    ``configuration_gpt_oss.py``.
    """
    names = dict.fromkeys((usual, "num_experts", "num_local_experts", "n_routed_experts"))
    return ConfigKey("count", default, names=tuple(names))


def expert_keys(usual: str = "num_experts", chosen: tuple[str, ...] = ()) -> dict[str, ConfigKey]:
    """Return the fields of the routed experts, and of those that a token visits."""
    tokens = count(rule=("at_most", "num_experts"), names=chosen)
    return {"num_experts": num_experts(usual), "num_experts_per_tok": tokens}


def window_or_none(default: object = None) -> ConfigKey:
    """Return the field of an attention window; ``null`` and 0 mean that there is none."""
    return ConfigKey("count_or_zero", default, nullable=True)


def text(*allowed: str, default: object = REQUIRED) -> ConfigKey:
    """Return a field that holds one of the allowed texts."""
    return ConfigKey("text", default, allowed=allowed)


def layer_types(*allowed: str, required: bool = False) -> ConfigKey:
    """Return a field that holds the kind of attention of each layer, or else nothing."""
    rule: Rule = ("one_for_each", "num_hidden_layers")
    default = REQUIRED if required else None
    return ConfigKey("texts", default, nullable=not required, allowed=allowed, rule=rule)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_HARMLESS: Final = """
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
    """
HARMLESS: Final = frozenset(_HARMLESS.split())

HARMLESS_PREFIXES: Final = ("rope_",)
"""Rotary tables hold no parameters and cost one elementwise pass, for any base."""

FIXED: Final[Mapping[str, tuple[object, ...]]] = {
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
    "sliding_window": (None, 0),
    "n_inner": (None,),
    "qk_layernorm": (False,),
    "use_bidirectional_attention": (False, None),
}
"""Fields that would change the structure of a family that does not read them, and the values that
leave it as it is."""


def is_harmless(name: str) -> bool:
    """Return whether a field never changes the structure."""
    return name in HARMLESS or name.startswith(HARMLESS_PREFIXES)


class Config:
    """The fields of one configuration, read by the keys of its family.

    Reading collects faults and never stops at the first; ``finish`` raises them all.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        keys: Mapping[str, ConfigKey],
        *,
        family: str,
        origin: str = "",
        prefix: str = "",
        harmless: str = "",
    ) -> None:
        self.keys = keys
        self.family = family
        self.origin = origin
        self.prefix = prefix
        self.faults: list[Fault] = []
        self.defaults: dict[str, object] = {}
        """Fields that are not stated, and the documented default; None: derived, or absent."""
        self._values: dict[str, Any] = {}
        self._stated: dict[str, str] = {}
        self._read_all(config)
        self._refuse_unknown(config, harmless.split())
        self._check_rules()

    def _read_all(self, config: Mapping[str, Any]) -> None:
        """Read each key; those that repeat another field come last."""
        for role, key in sorted(self.keys.items(), key=lambda item: bool(item[1].same_as)):
            stated = [name for name in key.names or (role,) if name in config]
            if not stated:
                self._take_default(role, key)
                continue
            value, self._stated[role] = config[stated[0]], stated[0]
            complaint = key.complaint(value)
            if complaint:
                self.fault(role, complaint)
            elif value is None and key.same_as:
                self._take_default(role, key)
            elif key.kind == "section":
                self._read_section(role, value, key)
            else:
                self._values[role] = value
            for other in stated[1:]:
                if config[other] != value:
                    self._note(other, f"is {shown(config[other])}, but {stated[0]} is {value!r}")

    def _take_default(self, role: str, key: ConfigKey) -> None:
        if key.is_required:
            also = f" (or {', '.join(key.names[1:])})" if key.names[1:] else ""
            self.fault(role, f"missing{also}; {self.family} needs {key.expected}")
        elif key.kind == "section":
            self._read_section(role, {}, key)
        elif not key.same_as or key.same_as in self._values:
            value = self._values[key.same_as] if key.same_as else key.default
            self._values[role] = self.defaults[self.stated(role)] = value

    def _read_section(self, role: str, config: Mapping[str, object], key: ConfigKey) -> None:
        """Read a nested section; its values are found as ``section.field``."""
        inner = Config(config, key.section, family=self.family, prefix=f"{self.prefix}{role}.")
        self.faults += inner.faults
        self._values |= {f"{role}.{part}": value for part, value in inner._values.items()}
        self.defaults |= {f"{role}.{part}": value for part, value in inner.defaults.items()}

    def _refuse_unknown(self, config: Mapping[str, object], harmless: Sequence[str]) -> None:
        known = {name for role, key in self.keys.items() for name in key.names or (role,)}
        for name in config:
            if name in known or name in harmless:
                continue
            if not isinstance(name, str):
                self._note(shown(name), "the name of a field must be a text")
            elif name in FIXED:
                value, fixed = config[name], FIXED[name]
                if not any(type(value) is type(entry) and value == entry for entry in fixed):
                    allowed = f"for {self.family} only {' or '.join(map(repr, fixed))} is modelled"
                    self._note(name, f"found {shown(value)}; {allowed}")
            elif not is_harmless(name):
                self._note(
                    name,
                    f"unknown to {self.family}, and it might change the structure",
                    nearest(name, known) if known else "",
                )

    def _check_rules(self) -> None:
        """Record fields that contradict each other; fields with other faults are left out."""
        for role, key in self.keys.items():
            if key.rule is None or None in (self._values.get(role), self._values.get(key.rule[1])):
                continue
            (rule, other), value = key.rule, self._values[role]
            name, limit = self.stated(other), self._values[other]
            if rule == "divides":
                self.divides(role, other)
            elif rule == "at_most" and value > limit:
                self.fault(role, f"{value} is more than {name} {limit}")
            elif rule == "equals" and value != limit:
                self.fault(role, f"{value} differs from {name} {limit}, which is not modelled")
            elif rule == "one_for_each" and len(value) != limit:
                self.fault(role, f"lists {len(value)} layers, but {name} is {limit}")

    def fault(self, role: str, message: str, fix: str = "") -> None:
        """Record one thing wrong with a field of the family."""
        self._note(self.stated(role), message, fix)

    def _note(self, name: str, message: str, fix: str = "") -> None:
        """Record one thing wrong with a field, by the name that the configuration gives it."""
        self.faults.append(Fault(f"{self.prefix}{name}", message, fix))

    def stated(self, role: str) -> str:
        """Return the name under which the configuration states a field."""
        names = self.keys[role].names if role in self.keys else ()
        return self._stated.get(role, names[0] if names else role)

    def require(self, holds: bool, role: str, message: str, fix: str = "") -> None:
        """Record a fault where a rule between fields does not hold."""
        if not holds:
            self.fault(role, message, fix)

    def divides(self, divisor: str, role: str) -> None:
        """Record a fault where one field is no multiple of another."""
        whole, part = self.count(role), self.count(divisor)
        message = f"{whole} is not divisible by {self.stated(divisor)} {part}"
        fix = f"the nearest multiple is {max(1, round(whole / part)) * part}"
        self.require(whole % part == 0, role, message, fix)

    def forget_defaults(self, roles: Sequence[str]) -> None:
        """Drop defaults that are not stated and do not matter here from the conventions."""
        for role in roles:
            self.defaults.pop(self.stated(role), None)

    def finish(self) -> None:
        """Raise all faults found so far."""
        if self.faults:
            raise SpecError(self.faults, origin=self.origin)

    def count(self, role: str) -> int:
        """Return a whole number that is there."""
        value = self._values[role]
        assert isinstance(value, int)
        return value

    def count_or_none(self, role: str) -> int | None:
        """Return a whole number, or None where the configuration has none."""
        return None if self._values.get(role) is None else self.count(role)

    def window(self, role: str) -> int | None:
        """Return the tokens of an attention window, or None where there is none."""
        return self.count_or_none(role) or None

    def flag(self, role: str) -> bool:
        """Return a truth value."""
        return bool(self._values[role])

    def text(self, role: str) -> str:
        """Return a text."""
        return str(self._values[role])

    def value(self, role: str) -> Any:
        """Return the stated value of any kind, or None."""
        return self._values[role]

    def listed(self, role: str) -> list[Any] | None:
        """Return a list, or None where the configuration has none."""
        value: list[Any] | None = self._values[role]
        return value


Reader = Callable[[Config], ModelSpec]


@dataclass(frozen=True)
class ModelFamily:
    """Configurations that a family reads, and their conversion to a model."""

    architectures: tuple[str, ...]
    """Values of ``architectures`` that it reads."""
    read: Reader
    model_types: tuple[str, ...]
    """Values of ``model_type`` that go with them."""
    keys: Mapping[str, ConfigKey]
    """Every field that changes the structure."""
    harmless: str = ""
    """Names of further fields of this family that change no dim, count or operator."""
    nested_types: tuple[str, ...] = ()
    """Values of ``model_type`` with a text model in ``text_config``."""
    outer_harmless: str = ""
    """Names of fields next to ``text_config`` that do not concern the text model."""

    @property
    def is_flat(self) -> bool:
        """Whether fields of text and vision may stand side by side, without ``text_config``."""
        return not set(self.nested_types).isdisjoint(self.model_types)


families: Registry[ModelFamily] = Registry("model family")


def family(name: str, *architectures: str, **rest: Any) -> Callable[[Reader], Reader]:
    """Return a decorator that registers a reader as a family, with further fields of it.

    Without ``model_types`` the name of the family is the one that it reads.
    """

    def register(read: Reader) -> Reader:
        families.register(name)(
            ModelFamily(architectures, read, **({"model_types": (name,)} | rest))
        )
        return read

    return register


DELTA_CHUNK: Final = 64
"""Tokens of a chunk of the gated delta rule. Source: ``torch_chunk_gated_delta_rule``, and the
kernels of flash-linear-attention."""

CORE_KEYS: dict[str, ConfigKey] = {
    "hidden_size": count(),
    "num_hidden_layers": count(most=MOST_LAYERS),
    "num_attention_heads": count(),
    "vocab_size": count(),
    "max_position_embeddings": count_or_none(),
}
"""Fields that nearly each configuration states under these names."""

_KV_RULE: Rule = ("divides", "num_attention_heads")
GROUPED_KEYS: dict[str, ConfigKey] = CORE_KEYS | {
    "intermediate_size": count(),
    "num_key_value_heads": count(same_as="num_attention_heads", rule=_KV_RULE),
    "head_dim": count_or_none(),
    "tie_word_embeddings": flag(False),
}
"""Fields of models with grouped key and value heads; ``head_dim`` absent: hidden / heads."""

STATED_KV_KEYS: dict[str, ConfigKey] = GROUPED_KEYS | {"num_key_value_heads": count(rule=_KV_RULE)}
"""Keys of classes with a default number of KV heads that fits one published model only."""


def attention_of(
    fields: Config, *, kv_heads: int | None = None, bias: bool = False, **rest: object
) -> AttentionSpec:
    """Return multi-head or grouped-query attention; ``bias`` is that of all its projections.

    The head size is stated, or hidden over heads, which must then divide. Key and value heads are
    given, or stated, or as many as query heads. Raises all faults recorded before.
    """
    head_size = fields.count_or_none("head_dim")
    if head_size is None:
        fields.divides("num_attention_heads", "hidden_size")
    fields.finish()
    heads = fields.count("num_attention_heads")
    head_size = head_size or fields.count("hidden_size") // heads
    kv_heads = kv_heads or fields.count_or_none("num_key_value_heads") or heads
    return AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, value_head_size=head_size,
        **({"qkv_bias": bias, "output_bias": bias} | rest),
    )  # fmt: skip


FULL, SLIDING = "full_attention", "sliding_attention"


def by_period(fields: Config, period: int) -> list[str]:
    """Return kinds of layers: the last one of each period sees everything, the others a window."""
    num_layers = fields.count("num_hidden_layers")
    return [SLIDING if (place + 1) % period else FULL for place in range(num_layers)]


def windowed(fields: Config, full: AttentionSpec, by_rule: list[str]) -> list[AttentionSpec]:
    """Return the attention of each layer: as ``layer_types`` states it, or by a rule."""
    kinds, window = fields.listed("layer_types") or by_rule, fields.window("sliding_window")
    has_window = [kind in (SLIDING, "local") for kind in kinds]
    message = "null, but layers with sliding attention need it"
    fields.require(window is not None or not any(has_window), "sliding_window", message)
    near = full.model_copy(update={"window": window})
    return [near if is_near else full for is_near in has_window]


def experts_of(fields: Config, **rest: object) -> ExpertSpec:
    """Return the experts of a layer; where no width of one is stated, that of a dense network."""
    width = fields.count_or_none("moe_intermediate_size") or fields.count("intermediate_size")
    num_experts, top_k = fields.count("num_experts"), fields.count("num_experts_per_tok")
    return ExpertSpec(num_experts=num_experts, top_k=top_k, ffn_size=width, **rest)


def router_groups(fields: Config) -> dict[str, int]:
    """Return the groups of experts of a router, and the number of them that a token uses."""
    num_groups = fields.count_or_none("n_group") or 1
    top_groups = fields.count_or_none("topk_group") or num_groups
    total, chosen = fields.count("num_experts"), fields.count("num_experts_per_tok")
    experts = f"{fields.stated('num_experts')} {total}"
    fields.require(total % num_groups == 0, "n_group", f"{num_groups} does not divide {experts}")
    of = f"{top_groups} of n_group {num_groups}"
    fields.require(top_groups <= num_groups, "topk_group", of)
    hold = f"{of} hold fewer of {experts} than num_experts_per_tok {chosen}"
    fields.require(chosen * num_groups <= top_groups * total, "topk_group", hold)
    fields.finish()
    return {"num_groups": num_groups, "top_groups": top_groups}


def dense_layer(
    fields: Config,
    attention: AttentionSpec | None,
    *,
    ffn_size: int | None = None,
    gated: bool = True,
    bias: bool = False,
    **rest: object,
) -> LayerSpec:
    """Return a layer with a dense network; its width absent: four times the hidden size."""
    width = ffn_size or fields.count_or_none("intermediate_size") or 4 * fields.count("hidden_size")
    network = FeedForwardSpec(ffn_size=width, gated=gated, bias=bias)
    return LayerSpec(attention=attention, feed_forward=network, **rest)


def model_of(
    fields: Config,
    layers: LayerSpec | Sequence[LayerSpec],
    *,
    notes: Sequence[str] = (),
    **rest: object,
) -> ModelSpec:
    """Return the model of its layers, or of equal ones; raises all faults recorded before.

    Its conventions list the fields that are not stated, with the values used instead.
    """
    fields.finish()
    if isinstance(layers, LayerSpec):
        layers = [layers] * fields.count("num_hidden_layers")
    index = {kind: place for place, kind in enumerate(dict.fromkeys(layers))}
    if "tied_embeddings" not in rest:
        rest["tied_embeddings"] = fields.flag("tie_word_embeddings")
    taken = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else value}"
        for name, value in fields.defaults.items()
        if value is not None
    ]
    derived = [name for name, value in fields.defaults.items() if value is None]
    not_stated = {
        "not stated, default of the configuration class": taken,
        "not stated, so derived by the rule of the family": derived,
    }
    defaults = [f"{note}: {', '.join(names)}" for note, names in not_stated.items() if names]
    head = (
        "tied head: logits share the embedding, which is counted once"
        if rest["tied_embeddings"]
        else "separate head: counted in addition to the embedding"
    )
    return ModelSpec(
        name=fields.family,
        architecture=fields.family,
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        layer_kinds=tuple(index),
        layer_pattern=tuple(index[layer] for layer in layers),
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
        conventions=(head, *notes, *defaults),
        **rest,
    )
