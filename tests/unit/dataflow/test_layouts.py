"""What a split of a kernel needs and leaves follows from where its dim stands."""

from meshwright.dataflow.layouts import PARTIAL, REPLICATED, TensorLayout, local_sizes, splits_of
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

KERNELS = {kernel.name: kernel for kernel in gpt_layer(64, 4, 16, 32).kernels}


def by_dim(name: str) -> dict[str | None, tuple[tuple[TensorLayout, ...], TensorLayout]]:
    return {split.dim: (split.reads, split.writes) for split in splits_of(KERNELS[name])}


def test_a_layer_is_split_by_columns_by_rows_and_by_tokens() -> None:
    splits = by_dim("ffn1")
    assert splits["hidden"] == ((REPLICATED,), TensorLayout(1))
    assert splits["ffn"] == ((TensorLayout(1),), PARTIAL)
    assert splits["tokens"] == ((TensorLayout(0),), TensorLayout(0))
    assert splits[None] == ((REPLICATED,), REPLICATED)


def test_scores_by_heads_leave_attention_local_and_by_queries_need_all_keys() -> None:
    splits = by_dim("qk")
    assert splits["heads"] == ((TensorLayout(1), TensorLayout(1)), TensorLayout(1))
    assert splits["tokens"] == ((TensorLayout(0), REPLICATED), TensorLayout(0))
    assert splits["keys"] == ((REPLICATED, TensorLayout(0)), TensorLayout(2))
    assert splits["head_dim"] == ((TensorLayout(2), TensorLayout(2)), PARTIAL)


def test_a_norm_keeps_its_rows_whole() -> None:
    assert set(by_dim("ln1")) == {None, "tokens"}
    assert set(by_dim("softmax")) == {None, "tokens", "heads"}


def test_a_dim_behind_another_lies_in_pieces_and_is_not_split() -> None:
    reads = (Operand("x", ("tokens", "heads*head_dim")),)
    kernel = Kernel("view", Unit.VECTOR, ("tokens", "heads", "head_dim"), reads)
    assert {split.dim for split in splits_of(kernel)} == {None, "tokens", "heads"}


def test_the_largest_shard_is_rounded_up() -> None:
    assert local_sizes({"a": 10, "b": 7}, "a", 4) == {"a": 3, "b": 7}
