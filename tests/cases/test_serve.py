"""Questions of serving that once met a wrong or unusable answer, with the right one and its reason.

Where a server decides, its source is beside the value.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.calibration.rows import published
from meshwright.calibration.serving import columns_of, serving_jobs
from meshwright.catalog.models import load_model
from meshwright.cli.main import main
from meshwright.frameworks.deployment import BENCHMARK, served
from meshwright.serve.passes import price_requests
from meshwright.serve.price import price_clients

FOLDER = Path(__file__).parent / "serve"


def estimate(name, **asked):
    return mw.estimate(str(FOLDER / name), **asked)


# ------------------------------------------------------------------------------------ requests


def test_requests_are_no_more_than_their_prompts_allow():
    """One H200 takes about four prompts of 9,000 tokens a second, whatever the clients."""
    asked = {"on": "1xH200", "batch": 64}
    found = mw.serve("llama3-8b", **asked, prompt=8984, answer=16)
    alone = mw.serve("llama3-8b", **asked, prompt=8984)
    prompts_per_s = alone.best.estimate.tokens_per_s / 8984
    assert found.requests_per_s <= 1.05 * prompts_per_s
    assert found.requests_per_s == pytest.approx(4.2, rel=0.1)


def test_requests_end_by_little_of_both_times():
    """N / (T + (O - 1) t), with the answer's own figures."""
    found = mw.serve("llama3-70b", on="8xH100", batch=64, prompt="2k",
                     answer=256, tp=8)  # fmt: skip
    price = found.best.estimate
    there_s = price.first_token_s + 255 * price.latency_s
    assert found.requests_per_s == pytest.approx(price.sequences_in_flight / there_s, rel=1e-12)


def test_the_verdict_on_workers_of_one_kind_counts_prompts():
    """Seven of eight devices take prompts alone; workers that do both win by far less than 49 %."""
    found = mw.serve("llama3-8b", on="8xH100", disaggregated=True,
                     batch=256, prompt="8k", answer=32, max_ttft="3s", max_tpot="50ms")  # fmt: skip
    assert 0.9 < found.speedup < 1.1


def test_rows_and_plans_are_priced_by_one_function():
    """30 published loads of clients: the figure of ``validate`` is that of the plan's price."""
    rows = [row for row in published("serving") if row.closed_loop][:300:10]
    jobs = [job for row in rows for job in serving_jobs(row, "calibrated")]
    assert len(rows) == 30
    compared = 0
    for column in columns_of(jobs):
        serving, served_ = column.setting.serving, column.served()
        for index, job in enumerate(column.jobs):
            at_once = served_.at_once[index]
            if job.are_equal or not np.isfinite(job.batch) or at_once < job.batch:
                continue
            request = job.prompt_tokens, job.answer_tokens
            groups = min(serving.strategy.pp, max(at_once, 1.0))
            columns = serving._columns(np.array([at_once / groups]))
            shape = serving._shape(job.prompt_tokens + job.answer_tokens / 2.0)
            made = price_requests(
                serving.problem, serving.plan_options, columns, *request, shape
            )  # fmt: skip
            found = price_clients(
                serving.problem, serving.strategy, made, at_once, request, groups
            )  # fmt: skip
            assert found.time.total_s[0] == served_.step_s[index]
            compared += 1
    assert compared > 10


# ------------------------------------------------------------------------------ room of the cache


def test_the_room_is_what_the_share_of_the_server_leaves():
    """405B in fbgemm FP8 on 8 H100: of 0.9 x 80 GiB weights take 56.7, and the log of vLLM says
    less than the 420,864 tokens of all that is left."""
    found = estimate("vllm_share.sh", on="8xH100", set=["SHARE=0.9"]).best.estimate
    gib = 2.0**30
    assert found.memory_parts_bytes["weights_bytes"] / gib == pytest.approx(56.7, abs=0.1)
    assert found.memory_parts_bytes["margin_bytes"] / gib == pytest.approx(8.0)
    # 126 layers x 2 x one head of 128 x 2 bytes a token.
    left = (0.9 * 80 * gib - sum(found.memory_parts_bytes[f"{name}_bytes"]
                                 for name in ("weights", "buffers", "working")))  # fmt: skip
    assert found.cache_tokens == int(left / 64512) < 200_000


@pytest.mark.parametrize(("option", "server"), [("--gpu-memory-utilization", "vllm"),
                                                ("--mem-fraction-static", "sglang")])  # fmt: skip
def test_the_share_of_the_memory_counts_and_is_written(option, server):
    asked = {"on": "8xH100", "batch": 8, "context": 4096, "framework": server}
    shares = [mw.serve("llama3-70b", **asked, tp=8, memory_share=share) for share in (0.7, 0.9)]
    less, more = (found.best.estimate.cache_tokens for found in shares)
    # 16 GiB of each device; 80 layers x 2 x one head of 128 x 2 bytes a token.
    assert more - less == pytest.approx(0.2 * 80 * 2**30 / 40960, abs=2)
    assert f"{option} 0.7" in served(shares[0], server)[f"{server}.sh"]


def test_weights_beyond_the_share_do_not_fit():
    said = r"nothing fits.* with the 24\.0 GiB that the server leaves free at a share of 0\.7"
    with pytest.raises(InfeasibleError, match=said):
        estimate("vllm_share.sh", on="8xH100", set=["SHARE=0.7"])


@pytest.mark.parametrize(("server", "share"), [("generic", 0.02), ("vllm", 0.1), ("sglang", 0.2),
                                               ("tensorrt-llm", 0.005)])  # fmt: skip
def test_a_share_at_which_it_fits_is_named_and_is_the_least(server, share):
    """Weights of 15 GiB and a cache of 1.0 GiB, which is 0.017 of what TensorRT-LLM has left."""
    asked = {"on": "1xH100", "batch": 1, "context": 8192}
    asked["framework"] = None if server == "generic" else server
    with pytest.raises(InfeasibleError, match="would fit: --memory-share ") as raised:
        mw.serve("llama3-8b", **asked, memory_share=share)
    named = float(re.search(r"--memory-share (\S+)", str(raised.value))[1])
    assert mw.serve("llama3-8b", **asked, memory_share=named).best.estimate.cache_tokens >= 8192
    with pytest.raises(InfeasibleError):
        mw.serve("llama3-8b", **asked, memory_share=named - 0.01)


def test_no_share_is_named_where_none_would_do():
    with pytest.raises(InfeasibleError) as raised:
        mw.serve("llama3-70b", on="1xH100", batch=1, context=4096, memory_share=0.5)
    assert "--memory-share" not in str(raised.value)


def test_the_tokens_of_the_cache_are_on_the_screen(capsys):
    main(["estimate", str(FOLDER / "vllm_share.sh"), "--on", "8xH100", "--set", "SHARE=0.9"])
    assert "KV cache of a replica: " in capsys.readouterr().out


# ------------------------------------------------------------------------------------- launching


def test_experts_lie_on_all_replicas_of_attention():
    """vLLM, ``FusedMoEParallelConfig.make``: ep is tp x dp where it is enabled."""
    found = estimate("vllm_experts.sh", on="8xB200", set=["LENGTH=131072"])
    assert found.best.text.startswith("tp1 pp1 dp8 ep8")
    assert "vllm" in found.best.launches_with
    # Not refused by a rule but by the memory: 62 layers of cache for 262,144 tokens take 62 GiB.
    with pytest.raises(InfeasibleError, match=r"the leanest of 1,.* of 140"):
        estimate("vllm_experts.sh", on="8xH200", set=["LENGTH=262144"])


def test_attention_of_replicas_in_one_server():
    """SGLang, ``--enable-dp-attention``: tp 8 is eight replicas of attention with tp 1."""
    found = estimate("sglang_attention.sh", on="8xH200")
    assert found.best.text.startswith("tp1 pp1 dp8 ep8")
    assert found.best.estimate.sequences_in_flight == 512
    assert "sglang" in found.best.launches_with


def test_a_pipeline_spans_hosts():
    """vLLM, docs/serving/parallelism_scaling.md: tp in a host, pp over hosts."""
    found = estimate("vllm_hosts.sh", on="16xH100")
    assert found.best.estimate.fits
    assert "vllm" in found.best.launches_with
    script = served(found, "vllm")["vllm.sh"]
    assert "--nnodes 2" in script


# ----------------------------------------------------------------------- what changes nothing


@pytest.mark.parametrize(
    "option",
    ["--with stage_layers=40+40", "--zero 3", "--recompute full", "--vpp 2", "--offload weights",
     "--schedule 1f1b", "--with document_length=512", "--with dp_overlap=on"],
)  # fmt: skip
def test_options_of_training_are_refused_in_serving(option, capsys):
    asked = ["serve", "llama3-8b", "--on", "8xH100", "--batch", "8", "--context", "2k"]
    assert main([*asked, *option.split()]) == 2
    assert "applies to plan, " in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- sure


def test_limits_hold_at_the_slow_end():
    asked = {"on": "8xH100", "batch": 64, "context": 4096}
    found = mw.serve("llama3-70b", **asked, max_latency="40ms")
    low_s, high_s = found.best.estimate.latency_interval_s
    assert low_s < found.best.estimate.latency_s < high_s <= 0.04
    slowest, fastest = found.best.estimate.tokens_per_s_interval
    assert slowest < found.best.estimate.tokens_per_s < fastest


@pytest.mark.parametrize("model", ["llama3-70b", "mixtral-8x7b"])
def test_more_devices_are_no_worse(model):
    best = 0.0
    for number in (8, 12, 16, 20, 22, 23, 24):
        found = mw.serve(model, on=f"{number}xH100", batch=256, context=4096)
        assert found.best.estimate.tokens_per_s >= 0.99 * best  # a tie takes fewer devices
        best = max(best, found.best.estimate.tokens_per_s)


# ---------------------------------------------------------------------------------------- files


def test_a_file_without_batch_takes_it_from_the_options():
    with pytest.raises(SpecError, match="--batch: is needed"):
        estimate("vllm_open.sh", on="4xH100")
    found = estimate("vllm_open.sh", on="4xH100", batch=8, context=4096)
    assert found.best.text.startswith("tp4 pp1 dp1")
    assert found.workload.precision.weight_name == "fp8"


def test_a_worker_of_decode_is_read_back():
    found = estimate("vllm_worker.sh", on="3xH100", set=["MODEL=llama3-8b"])
    assert found.best.strategy.dp == 3
    assert found.workload.batch_size == 12


@pytest.mark.parametrize("kind", ["vllm", "sglang", "vllm of both roles"])
def test_workers_of_both_kinds_are_read_as_they_were_planned(tmp_path, kind):
    """Scripts of before stated ``kv_both`` for both kinds: their head says which one each is."""
    server = kind.split()[0]
    plan = mw.serve("llama3-8b", on="8xH100", disaggregated=True,
                    batch=64, prompt="2k", answer=64, max_ttft="1s", framework=server)  # fmt: skip
    for name, text in served(plan, server).items():
        if kind.endswith("roles") and name != BENCHMARK:
            text = re.sub("kv_(producer|consumer)", "kv_both", text)
            assert "kv_both" in text
        (tmp_path / name).write_text(text, encoding="utf-8")
    asked = {"on": "8xH100", "set": ["MODEL=llama3-8b"]}
    prompts = mw.estimate(str(tmp_path / f"{server}-prefill.sh"), **asked)
    assert (prompts.workload.kind, prompts.workload.prompt_length) == ("prefill", 2048)
    answers = mw.estimate(str(tmp_path / f"{server}-decode.sh"), **asked)
    assert (answers.workload.kind, answers.workload.context_length) == ("decode", 2112)


def test_checkpoints_of_modelopt_are_read():
    """TensorRT Model Optimizer: 4 bits, and a scale of 8 for sixteen weights."""
    model = load_model(FOLDER / "modelopt.json")
    assert model.weight_format.bytes_per_weight == 0.5 + 1.0 / 16.0
    assert (model.weight_format.matmul, model.cache_type) == ("fp4", "fp8")


@pytest.mark.parametrize(("file", "name"), [("resaved_gpt_oss.json", "gpt-oss-20b"),
                                            ("resaved_qwen.json", "qwen3-30b-a3b")])  # fmt: skip
def test_configurations_of_transformers_5_are_the_same_models(file, name):
    found, known = load_model(FOLDER / file), load_model(name)
    assert found.layer_kinds == known.layer_kinds
    assert found.layer_pattern == known.layer_pattern


# ---------------------------------------------------------------------------------------- names

NAMES = """
unsloth/gpt-oss-20b-BF16 gpt-oss-20b bf16
openai/gpt-oss-120b gpt-oss-120b -
unsloth/gpt-oss-120b gpt-oss-120b -
meta-llama/Llama-3.1-405B llama3.1-405b -
meta-llama/Llama-3.1-405B-FP8 llama3.1-405b fp8
meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 llama3.1-405b fp8
RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8-dynamic llama3.1-405b fp8
amd/Llama-3.1-405B-Instruct-FP8-KV llama3.1-405b fp8
nvidia/Llama-3.1-405B-Instruct-FP4 llama3.1-405b fp4
hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4 llama3.1-405b awq
hugging-quants/Meta-Llama-3.1-70B-Instruct-GPTQ-INT4 llama3.1-70b gptq
RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16 llama3.1-8b w4a16
RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8 llama3.1-70b w8a8
neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8 llama3.1-8b fp8
unsloth/Llama-3.2-1B-Instruct-bnb-4bit llama3.2-1b bnb
unsloth/Meta-Llama-3.1-8B-bnb-4bit llama3.1-8b bnb
RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic llama3.3-70b fp8
nvidia/Llama-3.3-70B-Instruct-FP8 llama3.3-70b fp8
nvidia/Llama-3.3-70B-Instruct-NVFP4 llama3.3-70b nvfp4
casperhansen/llama-3.3-70b-instruct-awq llama3.3-70b awq
unsloth/Llama-3.3-70B-Instruct-unsloth-bnb-4bit llama3.3-70b bnb
meta-llama/Llama-4-Scout-17B-16E-Instruct llama4-scout -
meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8 llama4-maverick fp8
RedHatAI/Llama-4-Scout-17B-16E-Instruct-quantized.w4a16 llama4-scout w4a16
nvidia/Llama-4-Scout-17B-16E-Instruct-FP8 llama4-scout fp8
Qwen/Qwen3-235B-A22B-FP8 qwen3-235b-a22b fp8
Qwen/Qwen3-235B-A22B-Instruct-2507 qwen3-235b-a22b -
Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 qwen3-235b-a22b fp8
Qwen/Qwen3-235B-A22B-Thinking-2507-FP8 qwen3-235b-a22b fp8
nvidia/Qwen3-235B-A22B-NVFP4 qwen3-235b-a22b nvfp4
Qwen/Qwen3-30B-A3B-Instruct-2507-FP8 qwen3-30b-a3b fp8
Qwen/Qwen3-30B-A3B-GPTQ-Int4 qwen3-30b-a3b gptq
Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8 qwen3-30b-a3b fp8
Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8 qwen3-coder-480b-a35b fp8
Qwen/Qwen3-32B-AWQ qwen3-32b awq
Qwen/Qwen3-32B-FP8 qwen3-32b fp8
Qwen/Qwen3-8B-Base qwen3-8b -
unsloth/Qwen3-14B-bnb-4bit qwen3-14b bnb
Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 qwen3-next-80b-a3b fp8
Qwen/Qwen2.5-72B-Instruct-AWQ qwen2.5-72b awq
Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8 qwen2.5-72b gptq
Qwen/Qwen2.5-Coder-32B-Instruct qwen2.5-32b -
Qwen/Qwen2.5-Coder-32B-Instruct-AWQ qwen2.5-32b awq
Qwen/Qwen2.5-VL-7B-Instruct-AWQ qwen2.5-vl-7b awq
Qwen/QwQ-32B qwen2.5-32b -
Qwen/QwQ-32B-AWQ qwen2.5-32b awq
deepseek-ai/DeepSeek-V3-0324 deepseek-v3 -
deepseek-ai/DeepSeek-V3.1-Terminus deepseek-v3 -
deepseek-ai/DeepSeek-R1-0528 deepseek-r1 -
nvidia/DeepSeek-R1-0528-NVFP4 deepseek-r1 nvfp4
nvidia/DeepSeek-R1-FP4 deepseek-r1 fp4
cognitivecomputations/DeepSeek-R1-AWQ deepseek-r1 awq
unsloth/DeepSeek-R1-BF16 deepseek-r1 bf16
deepseek-ai/DeepSeek-R1-Distill-Llama-70B llama3.3-70b -
RedHatAI/DeepSeek-R1-Distill-Qwen-32B-FP8-dynamic qwen2.5-32b fp8
moonshotai/Kimi-K2-Instruct-0905 kimi-k2 -
mistralai/Mixtral-8x7B-Instruct-v0.1 mixtral-8x7b -
neuralmagic/Mixtral-8x22B-Instruct-v0.1-FP8 mixtral-8x22b fp8
TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ mixtral-8x7b awq
mistralai/Mistral-Small-24B-Instruct-2501 mistral-small-24b -
RedHatAI/Mistral-Nemo-Instruct-2407-FP8 mistral-nemo-12b fp8
mistralai/Mistral-7B-Instruct-v0.3 mistral-7b-v0.3 -
google/gemma-3-27b-it gemma3-27b -
RedHatAI/gemma-3-27b-it-FP8-dynamic gemma3-27b fp8
ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g gemma3-27b gptq
google/gemma-2-9b-it gemma2-9b -
zai-org/GLM-4.5-FP8 glm4.5 fp8
zai-org/GLM-4.5-Air-FP8 glm4.5-air fp8
THUDM/GLM-4-9B-0414 glm4-9b-0414 -
microsoft/phi-4 phi4-14b -
RedHatAI/phi-4-quantized.w4a16 phi4-14b w4a16
microsoft/Phi-4-mini-instruct phi4-mini -
TheBloke/Llama-2-70B-Chat-AWQ llama2-70b awq
TheBloke/Llama-2-13B-chat-GPTQ llama2-13b gptq
tiiuae/falcon-40b-instruct falcon-40b -
/models/Qwen3-Coder-480B-A35B-Instruct-FP8 qwen3-coder-480b-a35b fp8
unsloth/Qwen3-8B-GGUF - -
deepseek-ai/DeepSeek-V3.2-Exp - -
mistralai/Mistral-7B-Instruct-v0.2 mistral-7b-v0.2 -
Qwen/Qwen3-4B-Instruct-2507-FP8 qwen3-4b fp8
"""
"""Published checkpoints, the model with their dims, and the word for their format; -: none."""
WIDTHS = {
    "-": None, "bf16": None, "fp8": 1.0, "w8a8": 1.0, "w4a16": 0.5 + 2.0 / 128, "fp4": 0.5625,
    "nvfp4": 0.5625, "awq": 0.5 + 2.5 / 128, "bnb": 0.5625,
}  # fmt: skip
"""Bytes of a weight of a region that is narrow."""
TABLE = [line.split() for line in NAMES.split("\n") if line]


def test_the_table_has_names_of_all_kinds():
    assert len(TABLE) >= 54
    assert {word for _, _, word in TABLE} >= set(WIDTHS)


@pytest.mark.parametrize(("name", "model", "word"), TABLE)
def test_a_served_name_has_its_dims_and_its_format(name, model, word):
    if model == "-":
        with pytest.raises(mw.MeshwrightError, match="did you mean"):
            load_model(name)
        return
    found, known = load_model(name.removeprefix("/models/")), load_model(model)
    assert found.layer_kinds == known.layer_kinds
    stored = found.weight_format
    if word == "-":
        assert stored == known.weight_format
    elif word == "gptq":
        assert stored.name == f"GPTQ, {8 if 'Int8' in name else 4} bits"
    else:
        assert getattr(stored, "bytes_per_weight", None) == WIDTHS[word]


def test_a_publisher_says_what_its_checkpoint_leaves_wide():
    """fbgemm FP8 of Meta: attention, and the networks of the first and the last layer, stay wide;
    those of others leave the head alone."""
    own = load_model("meta-llama/Llama-3.1-405B-Instruct-FP8").weight_format
    assert own.wide_shares == {"attention": 1.0, "feed_forward": 2 / 126}
    assert not load_model("RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8").weight_format.wide_shares


def test_a_narrow_cache_goes_with_the_name():
    assert load_model("amd/Llama-3.1-405B-Instruct-FP8-KV").cache_type == "fp8"


def test_the_format_of_a_name_is_that_of_the_answer():
    """20.9 billion weights: 39 GiB in bf16, 12.8 of them in mxfp4."""
    wide, narrow = (
        estimate("vllm_format.sh", on="1xH100", set=[f"NAME={name}"]).best.estimate
        for name in ("unsloth/gpt-oss-20b-BF16", "openai/gpt-oss-20b")
    )
    sizes = [price.memory_parts_bytes["weights_bytes"] / 2**30 for price in (wide, narrow)]
    assert sizes == pytest.approx([39.0, 12.8], abs=0.5)
