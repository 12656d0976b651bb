"""Speculative decoding: a draft proposes tokens, and one pass of the model checks all of them."""

from __future__ import annotations

from meshwright.spec.model import ModelSpec


def tokens_per_step(acceptance: float, drafted_tokens: int) -> float:
    """Return the tokens that a step is expected to yield: those accepted, and one of the model.

    With k drafted tokens, each accepted with probability a where those before it were,

        1 + a + ... + a^k = (1 - a^(k + 1)) / (1 - a).

    Assumes: equal and independent chances of all tokens.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return sum(acceptance**accepted for accepted in range(drafted_tokens + 1))


def prediction_layer(model: ModelSpec) -> ModelSpec:
    """Return a layer of multi-token prediction as a draft: one of the last kind, and both tables.

    Its projection from two hidden vectors to one is left out.
    Source: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2.
    """
    kind = model.layer_kinds[model.layer_pattern[-1]]
    changes = {"name": f"{model.name}-mtp", "layer_kinds": (kind,), "layer_pattern": (0,)}
    return model.model_copy(update=changes)
