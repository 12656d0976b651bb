"""Selective recomputation by module: what is kept, what is repeated, what starts."""

from dataclasses import replace

import pytest

import meshwright as mw
from meshwright.base.arrays import number_at
from meshwright.cost.layer import price_layers
from meshwright.frameworks.chakra.steps import Pieces
from meshwright.frameworks.registry import rendered
from meshwright.graph.recompute import MODULES, repeated_ops
from meshwright.schedule.pipeline_schedules import TaskKind
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.local_sizes import saved_elements
from meshwright.sharding.strategy import PlanOptions, Recompute, make_strategy, stack
from meshwright.train.question import check_problem, make_problem, training

NONE = PlanOptions(sequence_parallel=False)
PARTS = ("core_attn", "layernorm", "mla_up_proj", "moe_act")
"""Modules that have no operator in common."""
ASKED = {"on": "64xH100", "seq": 4096, "global_batch": 256, "tp": 1, "pp": 4, "ep": 16, "mbs": 1}


def some(*modules):
    return replace(NONE, recompute=Recompute.SELECTIVE, recompute_modules=modules)


def problem_of(name):
    work = training("64xH100", global_batch_size=256, sequence_length=4096)
    return make_problem(name, "64xH100", work, "uncalibrated")


@pytest.fixture(scope="module")
def latent():
    """DeepSeek-V2-Lite: latent attention, then experts."""
    return problem_of("deepseek-v2-lite")


def kept(problem, plan_options):
    """Return the names of what a layer of experts keeps."""
    return {entry.tensor.name for entry in saved_elements(problem.graph.layers[-1], plan_options)}


def layer_of(problem, plan_options):
    network = problem.network(plan_options.axis_order, stack([make_strategy(dp_shard=64, ep=16)]))
    kind = plan_options.recompute
    return price_layers(problem, plan_options, network, (kind,), uses_tatp=False)[kind][-3]


def test_outputs_of_modules_are_dropped_and_what_they_read_is_kept(latent):
    before, after = kept(latent, NONE), kept(latent, some("layernorm", "mla_up_proj", "moe_act"))
    assert before - after == {
        "attention.norm.output", "experts.norm.output", "attention.kv_norm.output",
        "attention.rotary.query", "attention.rotary.key", "attention.value", "experts.activation",
    }  # fmt: skip
    assert {"layer_input", "attention.kv_down", "experts.up"} <= after
    # The rotary part of the key is made by a product that does not run again.
    assert after - before == {"attention.rotary_key", "attention.query"} & after


def test_the_core_alone_is_what_selective_recomputation_is_without_modules(latent):
    assert kept(latent, some("core_attn")) == kept(latent, some())
    one, other = (layer_of(latent, some(*modules)) for modules in ((), ("core_attn",)))
    assert number_at(one.recompute_s) == number_at(other.recompute_s) > 0
    assert number_at(one.kept_bytes) == number_at(other.kept_bytes)


def test_each_module_adds_its_own_time_and_drops_some_bytes(latent):
    """Modules repeat different operators: their times add, up to all of them together."""
    alone = [layer_of(latent, some(module)) for module in PARTS]
    together, none = layer_of(latent, some(*PARTS)), layer_of(latent, NONE)
    assert number_at(together.recompute_s) == pytest.approx(
        sum(number_at(layer.recompute_s) for layer in alone), rel=1e-12
    )
    full = layer_of(latent, replace(NONE, recompute=Recompute.FULL))
    assert number_at(together.recompute_s) < number_at(full.recompute_s)
    for layer in alone:
        assert number_at(layer.kept_bytes) < number_at(none.kept_bytes)
    assert number_at(full.kept_bytes) < number_at(together.kept_bytes)


def test_a_dense_network_keeps_its_input_alone():
    """4096 tokens of llama3-8b in bf16: 32 MiB for each hidden; the norm, 7 of gate and up, 3.5.

    Three products of 2 x 4096 x 14336 FLOPs for each token run again.
    """
    problem = problem_of("llama3-8b")
    none, found = (layer_of(problem, plan_options) for plan_options in (NONE, some("mlp")))
    dropped = number_at(none.kept_bytes) - number_at(found.kept_bytes)
    assert dropped == (1 + 7 + 3.5) * 4096 * 4096 * 2
    again = number_at(found.flops) - number_at(none.flops)
    assert again == 4096 * 3 * 2 * 4096 * 14336
    assert number_at(found.working_bytes) - number_at(none.working_bytes) == dropped


def test_experts_keep_the_norm_before_them_and_a_gated_sum_keeps_nothing(latent):
    before = kept(latent, NONE)
    assert before - kept(latent, some("moe")) == {
        "experts.rows", "experts.row_scores", "experts.up", "experts.activation",
        "shared_experts.up", "shared_experts.activation",
    }  # fmt: skip
    assert before - kept(latent, some("shared_experts")) == {
        "shared_experts.up", "shared_experts.activation",
    }  # fmt: skip
    assert kept(latent, some("moe", "moe_act", "shared_experts")) == kept(latent, some("moe"))


def test_experts_that_run_again_are_sent_for_again():
    """With ep each pass has a dispatch and a combine; the replay of the layer has both once more.

    The shared experts alone need no dispatch.
    """
    layer = problem_of("deepseek-v2-lite").graph.layers[-1]

    def replayed(module):
        calls = derive_calls(layer, some(module), axes=("ep",))
        return sorted(c.site.split(":")[0] for c in calls if c.replayed and "ep" in c.axis)

    assert replayed("moe") == ["experts.combine", "experts.dispatch"]
    assert replayed("shared_experts") == []


@pytest.mark.parametrize("module", ["core_attn", pytest.param("mlp", marks=pytest.mark.slow)])
def test_traces_and_simulation_repeat_what_modules_repeat(module):
    """A trace repeats the FLOPs that the price repeats; a simulated step takes longer by them."""
    asked = {"on": "wafer-6x8", "seq": 4096, "global_batch": 48, "pp": 4, "tp": 4}
    found = {}
    for modules in (None, module):
        kind = "selective" if modules else "none"
        plan = mw.estimate("llama3-8b", **asked, recompute=kind, recompute_modules=modules)
        entry = plan.best
        pieces = Pieces(plan.problem, entry.plan_options, entry.strategy)
        steps = pieces.steps(0, TaskKind.BACKWARD)
        flops = sum(getattr(getattr(step, "work", step), "flops", 0.0) for step in steps)
        found[kind] = (flops, mw.simulate(plan).step.step_time_s)
    repeated = found["selective"][0] - found["none"][0]
    products = 4096 / 4 * 3 * 2 * 4096 * 14336
    scores = 4096 / 4 * 2 * 2 * 4096 * 4096 / 2
    assert repeated == pytest.approx(products if module == "mlp" else scores, rel=0.01)
    assert found["selective"][1] > found["none"][1]


def test_collectives_of_repeated_products_run_again():
    """With sequence parallelism each up-projection gathers its input over tp once more."""
    layer = problem_of("deepseek-v2-lite").graph.layers[-1]
    plan_options = replace(some("mla_up_proj"), sequence_parallel=True)
    again = [call for call in derive_calls(layer, plan_options, axes=("tp",)) if call.replayed]
    first = [
        call for call in derive_calls(layer, replace(plan_options, recompute=Recompute.NONE),
                                      axes=("tp",))
        if call.site.split(":")[0] in MODULES["mla_up_proj"] and call.phase == "forward"
    ]  # fmt: skip
    assert [(c.kind, c.tensor, c.site) for c in again] == [
        (c.kind, c.tensor, c.site) for c in first
    ]


def test_modules_without_latent_attention_leave_rotary_alone():
    layer = problem_of("llama3-8b").graph.layers[0]
    assert repeated_ops(layer, ("mla_up_proj",)) == frozenset()
    assert repeated_ops(layer, ("layernorm",)) == {"attention.norm", "feed_forward.norm"}


@pytest.mark.parametrize(
    ("model", "module"),
    [
        ("llama3-8b", "mla_up_proj"), ("llama3-8b", "moe_act"), ("llama3-8b", "moe"),
        ("mixtral-8x7b", "mlp"), ("mixtral-8x7b", "shared_experts"),
    ],
)  # fmt: skip
def test_modules_that_a_model_lacks_are_refused(model, module):
    problem = problem_of(model)
    faults = check_problem(problem, make_strategy(dp_shard=64), some(module))
    assert "recompute-modules" in [fault.path for fault in faults]


def test_hardware_flops_count_the_products_of_modules():
    plans = {
        modules: mw.estimate("deepseek-v2-lite", **ASKED, recompute_modules=modules).best.estimate
        for modules in ("layernorm", "mla_up_proj")
    }
    ratio = {name: e.hfu / e.mfu_causal for name, e in plans.items()}
    assert ratio["layernorm"] < ratio["mla_up_proj"]


def test_modules_ask_for_selective_recomputation_and_are_written():
    modules = "layernorm+mla_up_proj+moe_act"
    plan = mw.estimate("deepseek-v2-lite", **ASKED, recompute_modules=modules,
                       framework="megatron")  # fmt: skip
    assert plan.best.text.endswith(f"recompute=selective, recompute_modules={modules}")
    (script,) = rendered(plan, "megatron").values()
    assert "--recompute-modules layernorm mla_up_proj moe_act" in script
    with pytest.raises(mw.MeshwrightError, match="says nothing about full recomputation"):
        mw.estimate("deepseek-v2-lite", **ASKED, recompute_modules=modules, recompute="full")
    with pytest.raises(mw.MeshwrightError, match="'attention'"):
        mw.estimate("deepseek-v2-lite", **ASKED, recompute_modules="attention")


def test_the_search_recomputes_the_modules_that_it_is_given():
    found = mw.plan("deepseek-v2-lite", **ASKED, recompute_modules="layernorm+moe_act")
    assert found.best.plan_options.recompute_modules == ("layernorm", "moe_act")
    assert found.best.plan_options.recompute is Recompute.SELECTIVE
