"""Plans of serving as data and as a screen."""

import json

import pytest

import meshwright
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model, model_entry, read_config
from meshwright.catalog.systems import load_system
from meshwright.graph.parameters import count_parameters
from meshwright.serve.answer import SERVING_FILE, serving_string
from meshwright.serve.answer_files import load_serving
from meshwright.serve.passes import ServingProblem
from meshwright.serve.search import ServingSpace, search_serving
from meshwright.serve.serve import serve, serving_plan
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack
from meshwright.view.terminal import text_of

DECODE = Decode(
    batch_size=256, context_length=8192, max_time_per_output_token_s=0.03,
    software=SoftwareStack(cuda_graphs=True),
)  # fmt: skip
PREFILL = Prefill(batch_size=16, prompt_length=4096)


def answer(work, model="llama3-70b", system="8xH100"):
    spec = load_system(system)
    constants = load_calibration(spec.chip.family)
    question = ServingProblem(load_model(model), spec, work, constants)
    return serving_plan(question, search_serving(ServingSpace(question, Choices())),
                        calibration="uncalibrated")  # fmt: skip


@pytest.fixture(scope="module", params=[DECODE, PREFILL], ids=["decode", "prefill"])
def plan(request):
    return answer(request.param)


def test_json_and_back(plan, tmp_path):
    assert SERVING_FILE.from_json(SERVING_FILE.to_json(plan)) == plan
    SERVING_FILE.save(plan, tmp_path / "plan.json")
    assert load_serving(tmp_path / "plan.json") == plan


def test_data_has_the_plan_string_and_parts_that_sum(plan):
    data = SERVING_FILE.to_data(plan)
    best = data["best"]
    assert best["plan"] == plan.best.text
    parts = best["estimate"]["time_parts_s"]
    assert sum(parts.values()) == pytest.approx(best["estimate"]["latency_s"], rel=1e-12)
    memory = best["estimate"]["memory_parts_bytes"]
    assert sum(memory.values()) == pytest.approx(best["estimate"]["memory_bytes"], rel=1e-12)
    assert data["workload"]["kind"] == plan.workload.kind


def test_faults_are_named():
    data = json.loads(SERVING_FILE.to_json(answer(DECODE)))
    data["best"]["estimate"].pop("latency_s")
    data["best"]["estimate"]["tokens_per_s"] = "fast"
    with pytest.raises(SpecError) as caught:
        SERVING_FILE.from_json(json.dumps(data))
    paths = [fault.path for fault in caught.value.faults]
    assert paths == ["best.estimate.latency_s", "best.estimate.tokens_per_s"]


@pytest.mark.parametrize("text", ["[]", "{", '{"format": 99}'])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(SpecError):
        SERVING_FILE.from_json(text)


def test_coverage_adds_up(plan):
    cover = plan.coverage
    refused = sum(cover.num_refused.values())
    assert cover.num_candidates == cover.num_priced + refused + cover.num_over_memory


def test_plan_string():
    strategy = make_strategy(tp=8, pp=2, dp_replicate=4, micro_batch_size=90)
    plan_options = PlanOptions(sequence_parallel=False, zero_stage=0)
    assert serving_string(strategy, plan_options, 2) == "tp8 pp2 dp4, batch 4 x 2 x 90"


def test_screen(plan):
    text = text_of(plan.page(), detail=True)
    assert max(len(line) for line in text.splitlines()) <= 100
    words = " ".join(text.split())
    assert plan.best.text in words
    rank = [f"{entry.estimate.tokens_per_s:,.0f}" for entry in plan.runners_up]
    assert [number in words for number in rank] == [True] * len(rank)
    assert f"Every one of {plan.coverage.num_candidates:,} plans is accounted for" in words
    assert f"Time {'per output token' if plan.is_decode else 'to the first token'}: " in words
    assert "uncalibrated" in words


def test_the_default_screen_leads_with_the_rates(plan):
    lines = text_of(plan.page(), width=80).splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 80
    price = plan.best.estimate
    answer = next(line for line in lines if line.startswith("FITS"))
    assert answer.split()[1] == f"{price.tokens_per_s:,.0f}"
    labels = [line.split()[0] for line in lines if line[:1] not in ("", " ")]
    assert [name for name in ("plan", "launches", "memory", "limit") if name not in labels] == []


def test_twice_a_resource_is_priced_and_is_never_slower(plan):
    assert plan.doubled_latency_s.keys() >= {"twice the matrix rate", "twice the hbm bandwidth"}
    ours_s = plan.best.estimate.latency_s
    assert all(0.4 * ours_s <= time_s <= ours_s for time_s in plan.doubled_latency_s.values())
    assert min(plan.doubled_latency_s.values()) < ours_s


@pytest.mark.parametrize(
    "asked",
    [
        {"batch": 64, "context": "4k"},
        {"batch": 4, "prompt": "4k"},
    ],
    ids=["decode", "prefill"],
)
def test_a_stated_rent_is_paid_for_the_devices_in_use_and_is_on_the_screen(asked):
    found = meshwright.serve("llama3-8b", on="8xH100", rent="2.5 USD/h", **asked)
    price = found.best.estimate
    hours = 1e6 / price.tokens_per_s / 3600
    devices = price.num_devices_used
    assert price.cost_usd_per_million_tokens == pytest.approx(devices * 2.5 * hours)
    shown = " ".join(text_of(found.page()).split())
    assert f"2.5 USD/h a device, {2.5 * devices:g} USD/h for {devices} (as stated)" in shown


def test_a_chip_without_a_rent_has_no_rate_on_the_screen():
    shown = text_of(answer(DECODE, "pythia-160m", "1xMI250").page())
    assert "price unknown" in shown
    assert "USD/h" not in shown


def test_screen_of_many_devices_keeps_its_width():
    lines = text_of(answer(DECODE, "mixtral-8x22b", "64xH100").page(), detail=True).splitlines()
    assert max(len(line) for line in lines) <= 100


def test_money_by_hand():
    price = answer(DECODE).best.estimate
    rent = load_system("8xH100").chip.rent_usd_per_hour
    seconds = 1e6 / price.tokens_per_s
    assert price.cost_usd_per_million_tokens == pytest.approx(8 * rent * seconds / 3600)
    chip = load_system("8xH100").chip
    fraction = load_system("8xH100").overhead_power_fraction
    most_j = 8 * chip.peak_power_w * (1 + fraction) * seconds
    least_j = 8 * chip.idle_power_w * (1 + fraction) * seconds
    assert least_j < price.energy_j_per_million_tokens < most_j


def test_unknown_money_stays_unknown():
    price = answer(PREFILL, system="8xMI250").best.estimate  # no cloud lists one
    assert price.cost_usd_per_million_tokens is None


def test_contexts_beyond_the_model_and_batches_beyond_the_server_are_warned_of():
    """Llama 3 8B has 8,192 positions; vLLM runs 256 sequences on a replica unless told."""
    limit = load_model("llama3-8b").max_sequence_length
    for tokens, warned in ((limit, False), (limit + 1, True)):
        for work in (Decode(batch_size=1, context_length=tokens),
                     Prefill(batch_size=1, prompt_length=tokens)):  # fmt: skip
            notes = answer(work, "llama3-8b").warnings
            assert any("is made for 8,192 tokens" in note for note in notes) == warned
    for server, batch, warned in (
        ("vllm", 512, True),
        ("vllm", 256, False),
        ("generic", 512, False),
    ):
        work = Decode(batch_size=batch, context_length=512)
        found = serve("llama3-8b", "1xH100", work, server=server)
        notes = [note for note in found.warnings if "sequences at a time" in note]
        told = f"--max-num-seqs {found.best.estimate.sequences_in_flight:.0f}"
        assert [note.endswith(told) for note in notes] == [True] * warned


def test_degrees_that_no_split_has_are_named():
    with pytest.raises(InfeasibleError, match="no split of 3 devices has tp 7"):
        serve("llama3-8b", "3xH100", Decode(batch_size=1, context_length=512), allowed={"tp": [7]})


def quantised(name="llama3-8b", **stated):
    config = {**model_entry(name).config, "quantization_config": stated}
    return read_config(config, name=f"{name}-quantised")


def test_a_quantised_checkpoint_weighs_what_it_stores():
    model = quantised(quant_method="awq", bits=4, group_size=128)
    found = serve(model, "1xH100", Decode(batch_size=1, context_length=1024))
    counts = count_parameters(model)
    layers = counts.parts["attention"] + counts.parts["feed_forward"]
    # Embedding, head and norms at 16 bits; the rest at 4, with a scale and a zero point for 128.
    expected = 2 * (counts.num_params - layers) + (0.5 + 2.5 / 128) * layers
    assert found.best.estimate.memory_parts_bytes["weights_bytes"] == expected
    plain = serve("llama3-8b", "1xH100", Decode(batch_size=1, context_length=1024))
    # A quarter of the bytes of layers; logits, starts of kernels and the server's time stay.
    read_s, plain_s = (one.best.estimate.time_parts_s["matmul_memory_s"] for one in (found, plain))
    assert read_s < 0.4 * plain_s
    assert "weights AWQ, 4 bits" in found.page().subtitle
    assert SERVING_FILE.from_json(SERVING_FILE.to_json(found)) == found


@pytest.mark.parametrize(("system", "matmul"), [("1xH100", "fp8"), ("1xA100", "bf16")])
def test_products_are_narrow_where_the_chip_has_the_type_of_the_checkpoint(system, matmul):
    work = Prefill(batch_size=1, prompt_length=1024)
    found = serve(quantised(quant_method="fp8"), system, work)
    assert found.workload.precision.matmul == matmul
    assert found.workload.precision.weight_bytes == 1.0


def test_stated_products_stay_as_stated():
    work = Prefill(batch_size=1, prompt_length=1024, precision=Precision(matmul="bf16"))
    found = serve(quantised(quant_method="fp8"), "1xH100", work)
    assert found.workload.precision.matmul == "bf16"


def test_stated_weights_take_the_place_of_the_checkpoint(tmp_path):
    config = {**model_entry("llama3-8b").config, "quantization_config": {"load_in_4bit": True}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    asked = {"on": "1xH100", "batch": "1", "context": "1k"}
    stored = meshwright.serve(str(path), **asked)
    stated = meshwright.serve(str(path), **asked, weights="fp8")
    plain = meshwright.serve("llama3-8b", **asked, weights="fp8")
    assert stated.best.estimate == plain.best.estimate
    assert stored.best.estimate.memory_bytes < stated.best.estimate.memory_bytes


def test_what_would_fit_is_narrower_than_the_checkpoint():
    model = quantised("llama3.1-405b", quant_method="fp8")
    with pytest.raises(InfeasibleError, match="would fit: weights in fp4"):
        serve(model, "4xH100", Decode(batch_size=1, context_length=1024))


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"context": 2048}, "context_length"),
        ({"prompt": 2048}, "prompt_length"),
        ({"prompt": 1024, "answer": 2}, "context_length"),
    ],
)
def test_no_sequence_is_longer_than_the_table_of_positions(asked, field):
    with pytest.raises(SpecError, match=rf"{field}: .* learned positions for 1024"):
        meshwright.serve("gpt2-124m", on="8xH100", batch=8, **asked)
