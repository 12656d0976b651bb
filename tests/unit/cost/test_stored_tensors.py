"""Tensors that recomputation keeps by name, on the device or on the host; bytes by hand."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.base.errors import MeshwrightError
from meshwright.cost.layer import price_layers
from meshwright.cost.memory import GATHERED_LAYERS, fullest
from meshwright.cost.parts import MemoryPart
from meshwright.cost.step import price_one
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy, stack
from meshwright.train.question import make_problem, training

TOKENS, LAYERS, HIDDEN, FFN = 8192, 32, 4096, 14336
WORD = 2
INPUT = QUERY = WORD * TOKENS * HIDDEN
KEY = VALUE = QUERY // 4
"""32 heads share 8 of keys and values."""
SELECTIVE = PlanOptions(sequence_parallel=False, zero_stage=3, recompute=Recompute.SELECTIVE)
FULL = replace(SELECTIVE, recompute=Recompute.FULL)


def step_of(plan_options):
    work = training("8xTPU-v6e", global_batch_size=8, sequence_length=TOKENS)
    problem = make_problem("llama3-8b", "8xTPU-v6e", work, "uncalibrated")
    return price_one(problem, plan_options, make_strategy(dp_shard=8)).step


def kept(**names):
    """Return the activations on the device beside those of the embedding, and on its host."""
    found, full = (
        number_at(fullest(step.memory)[0][MemoryPart.ACTIVATIONS], 0)
        for step in (step_of(replace(SELECTIVE, **names)), step_of(FULL))
    )
    host = number_at(step_of(replace(SELECTIVE, **names)).host_bytes, 0)
    return found - full + LAYERS * INPUT, host


@pytest.mark.parametrize(
    ("names", "each"),
    [
        (("decoder_layer_input",), INPUT),
        (("query_proj",), INPUT + QUERY),
        (("query_proj", "key_proj", "value_proj"), INPUT + QUERY + KEY + VALUE),
        (("mlpwi",), INPUT + WORD * TOKENS * 2 * FFN),
        (("out_proj", "mlpwo"), 3 * INPUT),
        (("context",), 2 * INPUT + 4 * TOKENS * 32),
    ],
)
def test_what_is_named_is_kept_with_the_input_of_a_layer(names, each):
    assert kept(kept_tensors=names) == (pytest.approx(LAYERS * each), 0.0)


def test_the_host_holds_all_and_the_device_the_layers_at_work():
    names = ("decoder_layer_input", "query_proj", "key_proj", "value_proj")
    each = INPUT + QUERY + KEY + VALUE
    on_device, on_host = kept(offloaded_tensors=names)
    assert on_host == pytest.approx(LAYERS * each)
    assert on_device == pytest.approx(GATHERED_LAYERS * each)


def test_products_that_are_kept_are_not_made_again():
    """2 FLOPs for each weight of gate and up, and each token."""
    full, less = step_of(FULL), step_of(replace(SELECTIVE, kept_tensors=("mlpwi",)))
    saved = number_at(full.flops - less.flops, 0)
    assert saved == pytest.approx(2 * 2 * HIDDEN * FFN * TOKENS * LAYERS, rel=1e-6)
    assert number_at(less.time.total_s, 0) < number_at(full.time.total_s, 0)


ASKED = {"on": "8xTPU-v6e", "seq": TOKENS, "global_batch": 8, "dp": 8, "zero": "3"}


def test_as_an_option():
    found = mw.estimate("llama3-8b", **ASKED, offloaded_tensors="decoder_layer_input+query_proj")
    assert found.best.plan_options.offloaded_tensors == ("decoder_layer_input", "query_proj")
    assert "offloaded_tensors=decoder_layer_input+query_proj" in found.best.text
    with pytest.raises(MeshwrightError, match="key_proj"):
        mw.estimate("llama3-8b", **ASKED, kept_tensors="keys")
    with pytest.raises(MeshwrightError, match="does not keep single tensors"):
        mw.estimate("llama3-8b", on="8xH100", seq=TOKENS, global_batch=8, framework="megatron",
                    kept_tensors="query_proj")  # fmt: skip


def test_in_a_search():
    found = mw.plan("llama3-8b", on="8xTPU-v6e", seq=TOKENS, global_batch=8, framework="maxtext",
                    kept_tensors="query_proj+key_proj+value_proj")  # fmt: skip
    assert found.best.plan_options.kept_tensors == ("query_proj", "key_proj", "value_proj")
    assert found.best.plan_options.recompute is Recompute.SELECTIVE


def kept_of(precision="bf16", optimizer=None, **software):
    """Return the activations of a step in which nothing is recomputed [bytes]."""
    work = training("8xH100", global_batch_size=8, sequence_length=TOKENS, precision=precision,
                    optimizer=optimizer)  # fmt: skip
    stack = work.software.model_copy(update=software)
    problem = make_problem(
        "llama3-8b", "8xH100", work.model_copy(update={"software": stack}), "uncalibrated"
    )
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=0)
    step = price_one(problem, plan_options, make_strategy(dp_shard=8)).step
    return fullest(step.memory)[0]


def test_frozen_products_keep_no_input_but_those_with_adapters():
    """Without the norm before the network, and what its activation wrote; attention keeps all."""
    usual, frozen = kept_of(), kept_of(optimizer="adapters")
    gone = usual.most[MemoryPart.ACTIVATIONS] - frozen.most[MemoryPart.ACTIVATIONS]
    assert number_at(gone, 0) == pytest.approx(LAYERS * WORD * TOKENS * (HIDDEN + FFN))
    narrow = kept_of(optimizer="adapters-fp8")[MemoryPart.WEIGHTS]
    assert number_at(frozen[MemoryPart.WEIGHTS] / narrow, 0) == 2.0


def test_activations_that_keep_their_input_in_8_bits():
    """A byte less for each of gate and up."""
    usual, narrow = kept_of(), kept_of(narrow_activation_inputs=True)
    gone = usual[MemoryPart.ACTIVATIONS] - narrow[MemoryPart.ACTIVATIONS]
    assert number_at(gone, 0) == pytest.approx(LAYERS * TOKENS * 2 * FFN)


@pytest.mark.parametrize(("name", "each"), [("megatron", 6), ("maxtext", 4), ("torchtitan", 12)])
def test_bytes_of_a_logit_at_the_worst_moment(name, each):
    """Logits of 2 bytes and 4 in place; XLA holds less, PyTorch three copies of 4 and no logits."""
    on = "8xTPU-v6e" if name == "maxtext" else "8xH100"
    found = mw.estimate("llama3-8b", on=on, seq=TOKENS, global_batch=8, dp=8, framework=name,
                        recompute="full", software={"logit_tiles": 1}).best.estimate  # fmt: skip
    stream = 3 * INPUT  # the input of the head and that of its norm, and a gradient
    assert found.memory_parts_bytes["logits_bytes"] == pytest.approx(
        each * TOKENS * 128256, abs=stream
    )


def test_an_operator_at_work_holds_gradients_of_what_it_reads_and_writes():
    """The activation of a gated network: what it reads is twice as wide as what it writes."""
    work = training("8xH100", global_batch_size=8, sequence_length=TOKENS)
    problem = make_problem("llama3-8b", "8xH100", work, "uncalibrated")
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=0)
    network = problem.network(plan_options.axis_order, stack([make_strategy(dp_shard=8)]))
    prices = price_layers(problem, plan_options, network, (Recompute.NONE,), uses_tatp=False)
    working = number_at(prices[Recompute.NONE][0].working_bytes, 0)
    assert working == pytest.approx(WORD * TOKENS * (2 * FFN + FFN))
