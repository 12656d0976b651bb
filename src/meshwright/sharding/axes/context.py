"""Context parallelism: the sequence is split everywhere, attention included.

Ring: keys and values travel round the group (Liu et al. 2023, arXiv 2310.01889). Ulysses: an
all-to-all turns split tokens into split heads and back (Jacobs et al. 2023, arXiv 2309.14509).
"""

from __future__ import annotations

from meshwright.base.arrays import BoolArray
from meshwright.graph.op import Tensor
from meshwright.sharding.axis import Axis, axes, is_routed
from meshwright.sharding.rules import Case, Rule, any_of
from meshwright.sharding.strategy import ContextKind, PlanOptions
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import Training


def _is_causal(case: Case) -> bool:
    return not isinstance(case.workload, Training) or case.workload.causal


def _cuts_sequence(case: Case) -> BoolArray:
    ring = case.structure.context_kind is ContextKind.RING
    parts = (2 if ring and _is_causal(case) else 1) * case.s.cp
    found: BoolArray = (case.sequence_length % parts != 0) & (case.s.cp > 1) & case.has_long_rows
    return found


def _cuts_heads(case: Case) -> BoolArray:
    if case.structure.context_kind is not ContextKind.ULYSSES:
        return case.no_rows
    degree = case.head_degree * case.s.cp
    masks = [a.num_heads % degree != 0 for a in case.attentions]
    masks += [
        (a.num_kv_heads % degree != 0) & (degree % a.num_kv_heads != 0) for a in case.attentions
    ]
    return any_of(masks, case) & (case.s.cp > 1)


def _has_no_group(case: Case) -> BoolArray:
    found: BoolArray = (case.s.cp == 1) & (case.structure.context_kind is not ContextKind.RING)
    return found


def _splits_one_token(case: Case) -> BoolArray:
    return (case.s.cp > 1) & (not case.has_long_rows)


def _leaves_slivers(case: Case) -> BoolArray:
    rows = case.s.micro_batch_size * case.sequence_length / case.s.cp
    return (rows < case.tile_rows) & (case.s.cp > 1) & case.has_long_rows


class ContextAxis(Axis):
    """Tokens of each sequence."""

    degrees = ("cp",)
    replicates_weights = True
    splits_sequence = True
    rules = (
        Rule(
            "cp-sequence",
            "each rank of cp holds equal parts of the sequence, two of them where a causal ring "
            "balances early and late tokens",
            _cuts_sequence,
            "sequence {sequence} does not divide into equal parts for cp {cp}",
            ("cp",),
        ),
        Rule(
            "cp-heads",
            "Ulysses attention splits whole heads over tp and cp together",
            _cuts_heads,
            "{heads} heads ({kv_heads} key heads) do not divide by tp {tp} x cp {cp}",
            ("cp", "tp"),
            "context_kind=ring",
        ),
        Rule(
            "ulysses-without-cp",
            "with cp 1 both kinds of context parallelism are the same; ring stands for it",
            _has_no_group,
            "Ulysses with cp 1 changes nothing",
            (),
            "context_kind=ring",
        ),
        Rule(
            "cp-decode",
            "a decode step has one token for each sequence, which cannot be split",
            _splits_one_token,
            "cp {cp} splits sequences of one token",
            ("cp",),
        ),
        Rule(
            "cp-tile",
            "a rank's tokens fill at least one tile of the matrix unit",
            _leaves_slivers,
            "{micro_batch_size} x {sequence} tokens over cp {cp} are fewer than {tile_rows} rows",
            ("cp", "micro_batch_size"),
        ),
    )

    def activation_dim(self, tensor: Tensor, structure: PlanOptions) -> str | None:
        """Return the tokens of every tensor outside of the routed experts."""
        return "tokens" if "tokens" in tensor.dims and not is_routed(tensor) else None

    def is_streamed(self, kind: CollectiveKind, structure: PlanOptions) -> bool:
        """Return whether keys and values travel step by step."""
        return structure.context_kind is ContextKind.RING and kind is not CollectiveKind.ALL_REDUCE


axes.register("cp")(ContextAxis())
