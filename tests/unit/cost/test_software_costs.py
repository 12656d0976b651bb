"""What software changes in a price: fusion, kernels, recomputation, sends, copies. By ratio."""

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.catalog.models import load_model, model_entry, read_config
from meshwright.catalog.systems import chip_names, load_chip
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.memory import (
    ENGINE_WORKSPACE_BYTES,
    WORKSPACE_BYTES,
    workspace_bytes,
)
from meshwright.cost.operator import partial_gradients_bytes
from meshwright.cost.parts import MemoryPart, TimePart
from meshwright.cost.pipeline import send_bytes
from meshwright.cost.step import price_one
from meshwright.graph.flops import step_flops
from meshwright.graph.parameters import count_parameters
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy
from meshwright.spec.workload import Precision
from meshwright.train.price import estimate_of
from meshwright.train.question import make_problem, training
from meshwright.train.search import arithmetic_s

PLAN = make_strategy(tp=2, dp_shard=4, micro_batch_size=1)
PLAN_OPTIONS = PlanOptions(sequence_parallel=False)


def problem(*, model="llama3-8b", system="8xA100", constants=None, **software):
    work = training(system, global_batch_size=8, sequence_length=2048)
    stack = work.software.model_copy(update=software)
    found = make_problem(
        load_model(model) if isinstance(model, str) else model, system,
        work.model_copy(update={"software": stack}), "uncalibrated",
    )  # fmt: skip
    return replace(found, calibration=replace(found.calibration, **(constants or {})))


def compute_s(found, plan_options=PLAN_OPTIONS, *parts):
    """Return the seconds of some parts of a step: of its computation, whatever limits it."""
    time = price_one(found, plan_options, PLAN).step.time
    parts = parts or (TimePart.COMPUTE, TimePart.MAIN_MEMORY)
    return sum(float(np.asarray(time[part]).reshape(-1)[0]) for part in parts)


def test_uncalibrated_constants_leave_every_switch_at_no_price():
    plain = compute_s(problem())
    assert compute_s(problem(eager=True)) == plain
    assert compute_s(problem(attention_kernels="portable")) == plain


def test_eager_operators_move_more_bytes_and_products_do_not():
    double = {"eager_traffic_factor": 2.0}
    added = compute_s(problem(eager=True, constants=double)) - compute_s(problem())
    again = compute_s(problem(eager=True, constants={"eager_traffic_factor": 3.0}))
    assert added > 0
    assert again - compute_s(problem()) == pytest.approx(2.0 * added)
    assert compute_s(problem(constants=double)) == compute_s(problem())


def test_products_sustain_a_share_of_their_rate():
    shares = [problem(constants={"matmul_sustained_efficiency": e}) for e in (1.0, 0.5, 0.25)]
    one, two, four = (compute_s(found) for found in shares)
    assert four - two == pytest.approx(2.0 * (two - one), rel=0.05)


def test_portable_attention_is_slower():
    half = {"portable_attention_efficiency": 0.5}
    assert compute_s(problem(attention_kernels="portable", constants=half)) > compute_s(problem())
    assert compute_s(problem(constants=half)) == compute_s(problem())


def test_every_second_product_is_repeated():
    """Llama 3 8B: the output of attention and up, 1 + 3.5 of 1.5 + 1 + 3 x 3.5 parts."""
    selective, full = (
        PlanOptions(recompute=Recompute.SELECTIVE),
        PlanOptions(recompute=Recompute.FULL),
    )
    half = problem(selective_recompute="half_of_products")
    again, whole = (compute_s(half, s, "recompute_s") for s in (selective, full))
    core = compute_s(problem(), selective, "recompute_s")
    assert 0 < core < again < whole
    assert 4.5 / 13 < again / (whole - core) < 4.5 / 13 + 0.05  # norms and the activation beside


def test_gradients_added_apart_cost_ten_bytes_of_traffic():
    apart = problem(fused_gradient_accumulation=False)
    added = compute_s(apart) - compute_s(problem())
    params = 8.03e9 / 2.0
    once = 10.0 * params / problem().rates.memory_bytes_per_s
    assert added == pytest.approx(2.0 * once, rel=0.15)


def test_scattered_sends_are_a_part_of_each_rank():
    whole = send_bytes(problem(), PLAN_OPTIONS, PLAN)
    assert send_bytes(problem(scatters_sends=True), PLAN_OPTIONS, PLAN) == whole / 2.0
    split = PlanOptions(sequence_parallel=True)
    assert send_bytes(problem(scatters_sends=True), split, PLAN) == whole / 2.0


def test_heads_off_the_grid_of_words_leave_the_matrix_units():
    model = load_model("gpt3-6.7b")
    kind = model.layer_kinds[0]

    def with_head_size(size):
        attention = kind.attention.model_copy(update={"head_size": size, "value_head_size": size})
        changed = kind.model_copy(update={"attention": attention})
        return model.model_copy(update={"layer_kinds": (changed,)})

    aligned, off = (
        compute_s(problem(model=with_head_size(size), flash_attention=False)) for size in (112, 108)
    )
    assert off > 1.1 * aligned
    fused = [compute_s(problem(model=with_head_size(size))) for size in (112, 108)]
    assert fused[1] < fused[0]


def test_experts_reach_a_share_and_route_more():
    found = [
        compute_s(problem(model="mixtral-8x7b", constants=constants))
        for constants in ({}, {"grouped_matmul_efficiency": 0.5}, {"expert_traffic_factor": 3.0})
    ]
    assert found[0] < found[1]
    assert found[0] < found[2]


def memory(asked, plan_options=PLAN_OPTIONS, plan=PLAN):
    return price_one(asked, plan_options, plan).step.memory


@pytest.mark.parametrize("copies", [0.0, 2.5])
def test_the_loss_holds_fp32_copies_of_the_logits(copies):
    asked, plain = problem(fp32_split_logit_copies=copies), problem()
    tokens = plain.workload.sequence_length * float(PLAN.micro_batch_size)
    logits = tokens * plain.model.vocab_size / float(PLAN.tp)
    found, usual = memory(asked)[0][MemoryPart.LOGITS], memory(plain)[0][MemoryPart.LOGITS]
    assert found - usual == pytest.approx(4.0 * (copies - 1.0) * logits, rel=1e-3)
    assert compute_s(asked) == compute_s(plain)


def test_copies_of_whole_logits_count_where_nothing_splits_them():
    whole = make_strategy(dp_shard=8, micro_batch_size=1)
    copied, split, plain = (
        memory(asked, PLAN_OPTIONS, whole)[0][MemoryPart.LOGITS]
        for asked in (
            problem(fp32_logit_copies=2.5),
            problem(fp32_split_logit_copies=9.0),
            problem(),
        )
    )
    logits = problem().workload.sequence_length * problem().model.vocab_size
    assert copied - plain == pytest.approx(4.0 * 1.5 * logits, rel=1e-3)
    assert split == plain


def test_gradients_of_logits_may_wait():
    """Two of them, of two bytes, each of the shard of tp."""
    waiting, plain = problem(deferred_logit_gradients=2), problem()
    logits = 2048 * plain.model.vocab_size / float(PLAN.tp)
    found, usual = memory(waiting)[0][MemoryPart.LOGITS], memory(plain)[0][MemoryPart.LOGITS]
    assert found - usual == pytest.approx(2 * 2 * logits, rel=1e-3)
    assert compute_s(waiting) == compute_s(plain)


@pytest.mark.parametrize(
    ("system", "deterministic", "handle_mib"),
    [
        ("8xA100", False, 8.125),
        ("8xA100", True, 32),
        ("8xH100", False, 32),
        ("8xMI300X", True, 0),
    ],
)
def test_libraries_of_products_have_a_workspace_for_each_direction(
    system, deterministic, handle_mib
):
    asked = problem(system=system, deterministic=deterministic)
    assert workspace_bytes(asked) == 2 * handle_mib * 2**20


@pytest.mark.parametrize(
    ("system", "engine_bytes"), [("8xA100", 4_194_304), ("8xH100", 33_555_456), ("8xMI300X", 0)]
)
def test_transformer_engine_has_a_workspace_of_its_own(system, engine_bytes):
    plain, engine = (problem(system=system, transformer_engine=uses) for uses in (False, True))
    assert workspace_bytes(engine) - workspace_bytes(plain) == engine_bytes


def test_every_family_of_nvidia_has_a_workspace():
    chips = [load_chip(name) for name in chip_names()]
    families = {chip.family for chip in chips if chip.vendor == "NVIDIA"}
    assert families == set(WORKSPACE_BYTES) == set(ENGINE_WORKSPACE_BYTES)


@pytest.mark.parametrize(
    ("software", "more"),
    [
        ({}, 0),
        ({"eager": True}, 2 * 11008),
        ({"eager": True, "norms_in_steps": True}, 2 * 11008 + 2 * 4 * 4096),
        ({"norms_in_steps": True}, 0),
    ],
)
def test_plain_modules_keep_gates_and_steps_of_norms(software, more):
    """Llama 2 7B: the gate 2 bytes; of each norm 4 and 2 bytes in the place of 2."""
    plan = make_strategy(dp_shard=8, micro_batch_size=1)
    found, plain = (
        memory(problem(model="llama2-7b", **changes), PLAN_OPTIONS, plan)[0][MemoryPart.ACTIVATIONS]
        for changes in (software, {})
    )
    assert found - plain == pytest.approx(32 * 2048 * more)


def test_stages_may_keep_what_they_sent():
    plan = make_strategy(tp=2, pp=2, dp_shard=2, micro_batch_size=1)
    kept, plain = (
        memory(problem(keeps_stage_outputs=keeps), PLAN_OPTIONS, plan) for keeps in (True, False)
    )
    sent = send_bytes(problem(), PLAN_OPTIONS, plan)
    first = kept[0][MemoryPart.ACTIVATIONS] - plain[0][MemoryPart.ACTIVATIONS]
    assert first == pytest.approx(2.0 * sent)
    assert kept[2][MemoryPart.ACTIVATIONS] == plain[2][MemoryPart.ACTIVATIONS]


def test_casts_of_each_local_expert_show_in_narrow_types_alone():
    def added_s(ep, matmul):
        plan = make_strategy(dp_shard=8, ep=ep)
        work = problem(model="mixtral-8x7b", system="8xH100")
        narrow = work.workload.model_copy(update={"precision": Precision(matmul=matmul)})
        found = [
            replace(work, workload=narrow, calibration=replace(work.calibration, expert_kernels=k))
            for k in (0.0, 10.0)
        ]
        few, many = (
            float(price_one(f, PLAN_OPTIONS, plan).step.time[TimePart.COMPUTE][0]) for f in found
        )
        return many - few

    launch_s = problem(system="8xH100").calibration.launch_s
    layers, products, micro_batches = 32, 6, 1
    most_s = 10.0 * launch_s * 8 * layers * products * micro_batches
    assert added_s(1, "bf16") == 0.0
    assert 0.0 < added_s(8, "fp8") <= most_s / 8.0
    assert added_s(1, "fp8") > 4.0 * added_s(8, "fp8")
    assert added_s(1, "fp8") <= most_s


def test_narrow_products_keep_a_share_of_their_rate():
    wide, narrow = (
        [
            compute_s(replace(found, workload=found.workload.model_copy(update={"precision": p})))
            for p in (Precision(), Precision(matmul="fp8"))
        ]
        for found in (
            problem(system="8xH100", constants={"narrow_matmul_efficiency": share})
            for share in (1.0, 0.5)
        )
    )
    assert wide[0] == narrow[0]
    assert wide[1] < narrow[1]


def test_frozen_weights_save_a_third_of_the_products():
    found = problem()
    adapters = found.workload.model_copy(update={"optimizer": load_optimizer("adapters")})
    frozen = replace(found, workload=adapters)
    time = price_one(frozen, PLAN_OPTIONS, PLAN).step.time
    assert 0.6 < compute_s(frozen) / compute_s(found) < 0.75
    assert float(np.asarray(time[TimePart.OPTIMIZER]).reshape(-1)[0]) == 0.0


def both_optimizers(model, system, plan, plan_options=PLAN_OPTIONS):
    """Return a problem whose weights are trained and one whose weights are frozen, priced."""
    trained = problem(model=model, system=system)
    adapters = trained.workload.model_copy(update={"optimizer": load_optimizer("adapters")})
    frozen = replace(trained, workload=adapters)
    return [(each, price_one(each, plan_options, plan)) for each in (trained, frozen)]


@pytest.mark.parametrize(
    ("system", "plan"),
    [
        ("8xA100", make_strategy(tp=2, dp_shard=4)),
        ("wafer-6x8", make_strategy(tatp=8, dp_shard=4)),
        ("wafer-6x8", make_strategy(tatp=4, dp_shard=8)),
    ],
)
def test_frozen_weights_take_two_thirds_of_the_flops_of_products(system, plan):
    """4 P against 6 P; the scores, which have no weights, are the same."""
    (found, trained), (_, frozen) = both_optimizers("llama3-8b", system, plan)
    sizes = {"num_tokens": 8.0 * 2048.0, "sequence_length": 2048.0}
    gradients = step_flops(found.graph, **sizes).weight_gradient
    saved = float(trained.step.flops[0] - frozen.step.flops[0])
    # The slowest device of equal ones does an equal part of what is saved.
    assert saved * plan.num_devices == pytest.approx(gradients, rel=0.02)


def test_the_utilisation_of_adapters_leaves_out_gradients_of_frozen_weights():
    for found, priced in both_optimizers("llama3-8b", "8xA100", PLAN):
        price, frozen = estimate_of(found, priced), found.workload.optimizer.freezes_weights
        flops = step_flops(
            found.graph, num_tokens=8.0 * 2048.0, sequence_length=2048.0, freezes_weights=frozen
        )
        peak = 8 * 312e12 * price.step_time_s
        assert price.mfu_causal == pytest.approx(flops.model / peak)
        assert price.hfu == pytest.approx(flops.hardware / peak)


def test_arithmetic_bounds_the_step_of_adapters():
    (_, _), (found, priced) = both_optimizers("llama3-8b", "8xA100", PLAN)
    assert arithmetic_s(found, PLAN.num_devices) <= float(priced.step.time.total_s[0])


def test_operands_are_cast_before_they_are_gathered():
    def casts_s(sequence_parallel):
        plan_options = replace(PLAN_OPTIONS, sequence_parallel=sequence_parallel)
        narrow, wide = (
            replace(found, workload=found.workload.model_copy(update={"precision": precision}))
            for found in [problem(system="8xH100")]
            for precision in (Precision(matmul="fp8", row_scales=True), Precision())
        )
        return compute_s(narrow, plan_options) - compute_s(wide, plan_options)

    # In 16 bits both have the same products; SP halves the elementwise work of both as well.
    assert 0.0 < casts_s(sequence_parallel=True) < casts_s(sequence_parallel=False)


def test_scales_of_rows_run_at_the_rate_of_the_activations():
    found = problem(system="8xH100", constants={"narrow_matmul_efficiency": 0.5})
    engines = [
        replace(found, workload=found.workload.model_copy(update={"precision": p})).rates
        for p in (Precision(), Precision(matmul="fp8", row_scales=True), Precision(matmul="fp8"))
    ]
    rates = [rates.matmul_flops_per_s for rates in engines]
    assert rates[0] == rates[1]
    assert rates[2] == pytest.approx(rates[0] * 1402.6 / 794.5 / 2.0)


QLORA = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def adapters_on(stated, *, optimizer="adapters", sequence_length=2048):
    config = dict(model_entry("llama3-8b").config)
    if stated is not None:
        config["quantization_config"] = stated
    work = training(
        "8xA100", global_batch_size=8, sequence_length=sequence_length, optimizer=optimizer
    )
    return make_problem(read_config(config, name="llama3-8b"), "8xA100", work, "uncalibrated")


def test_frozen_weights_rest_as_the_checkpoint_stores_them():
    """Layers at 0.5 + 4/64 bytes a weight; embedding, head and norms at two."""
    narrow, wide = (
        price_one(adapters_on(stated), PLAN_OPTIONS, PLAN).step for stated in (QLORA, None)
    )
    found = adapters_on(QLORA)
    counts = count_parameters(found.model)
    layers = counts.parts["attention"] + counts.parts["feed_forward"]
    mean = (0.5625 * layers + 2 * (counts.num_params - layers)) / counts.num_params
    assert found.workload.optimizer.weight_bytes_per_param == pytest.approx(mean)
    parts = [step.memory[0][MemoryPart.WEIGHTS][0] for step in (narrow, wide)]
    assert parts[0] / parts[1] == pytest.approx(mean / 2)
    # Each pass reads what is stored and writes a wide copy: two passes of each layer on tp 2.
    moved = 2 * (0.5625 + 2) * layers / 2
    least_s = moved / found.rates.elementwise_bytes_per_s
    more_s = float(narrow.time[TimePart.MAIN_MEMORY][0] - wide.time[TimePart.MAIN_MEMORY][0])
    num_micro_batches = 2
    assert more_s == pytest.approx(num_micro_batches * least_s, rel=0.05)


def test_a_wide_copy_of_frozen_weights_is_there_while_their_product_works():
    (narrow,), (wide,) = (
        price_one(adapters_on(stated, sequence_length=64), PLAN_OPTIONS, PLAN)
        .step.memory[0].most[MemoryPart.TEMPORARY].tolist()
        for stated in (QLORA, None)
    )  # fmt: skip
    # Of gate and up, split over tp 2; with 64 tokens activations are smaller.
    copy = 2 * 2 * 4096 * 14_336 / 2
    assert 0.5 * copy < narrow - wide <= copy


def test_trained_weights_are_as_wide_as_the_optimizer_keeps_them():
    found = adapters_on(QLORA, optimizer="megatron-adam")
    assert found.workload.optimizer == load_optimizer("megatron-adam")
    assert found.rates.weight_format is None


def test_adapters_on_fp8_are_trained_on_wide_weights():
    found = adapters_on({"quant_method": "fp8"})
    assert found.workload.optimizer == load_optimizer("adapters")
    assert found.rates.weight_format is None


def test_the_problem_of_stored_weights_is_its_own():
    found = adapters_on(QLORA)
    again = make_problem(found.model, found.system, found.workload, "uncalibrated")
    assert again.workload == found.workload


def test_sums_of_a_weight_gradient_that_is_made_in_parts():
    """Seven sums of 128,256 x 4,096 numbers in BF16: two read and one written, 6 bytes a number."""
    assert partial_gradients_bytes(128256 * 4096, 8, 2) == 7 * 6 * 525_336_576
    assert partial_gradients_bytes(128256 * 4096, 1, 2) == 0.0


def test_a_loss_in_parts_takes_the_time_of_its_sums():
    """22.06 GB in the backward pass of each micro-batch, at the rate of elementwise operators."""
    asked = {"on": "1xB200", "seq": 8192, "global_batch": 2, "framework": "torchtitan"}
    parts = mw.estimate("llama3-8b", **asked)
    whole = mw.estimate("llama3-8b", **asked, software={"logit_tiles": 1})
    more_s = parts.best.estimate.step_time_s - whole.best.estimate.step_time_s
    rate = parts.problem.rates.elementwise_bytes_per_s
    assert more_s == pytest.approx(2 * 22_064_136_192 / rate, rel=0.05)
    assert parts.best.estimate.memory_bytes < whole.best.estimate.memory_bytes - 5e9
