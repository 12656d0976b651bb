"""The fewest workers for a rate: bounds, limits, money, refusals, traces, given splits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.traces import load_trace
from meshwright.cli.main import main
from meshwright.serve.traffic.fleet import _least

ASKED = {
    "on": "8xH100", "framework": "vllm", "cuda_graphs": True, "prompt": "1k", "answer": 128,
}  # fmt: skip


def served(**more):
    return mw.serve("llama3.1-8b", **ASKED, **more)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_the_least_number_is_that_of_a_loop(first, most, rule):
    numbers = [number for number in range(first, most + 1) if number >= rule]
    assert _least(first, most, lambda number: number >= rule) == (numbers[0] if numbers else None)


def test_one_worker_less_breaks_the_limits():
    found = served(rate=60, max_tpot="25ms", tp=1)
    best = found.best
    assert best.num_workers == best.num_devices > 1
    assert best.tpot.interval_s[1] <= 0.025
    try:
        fewer = served(rate=60, max_tpot="25ms", tp=1, dp=best.num_workers - 1).best
    except InfeasibleError:
        return
    assert fewer.tpot.interval_s[1] > 0.025


def test_percentiles_rates_and_money_fit_together():
    best = served(rate=5, max_ttft="2s").best
    for times in (best.ttft, best.tpot, best.e2e):
        assert 0 < times.p50_s <= times.p90_s <= times.asked_s <= times.p99_s
        assert times.mean_s == pytest.approx(times.closed_form_s, rel=0.2)
    # 5 requests/s with 128 tokens each are 640 tokens/s, or 2.304 million an hour; an H100 of
    # 10.8 USD/h per device in use.
    assert best.tokens_per_s == pytest.approx(640.0)
    rent = mw.serve("llama3.1-8b", **ASKED, rate=5, rent=2.0).best
    assert rent.cost_usd_per_million_tokens == pytest.approx(2.0 * rent.num_devices / 2.304)
    assert best.goodput_requests_per_s == pytest.approx(5.0)
    assert best.cache_hit_share == 0.0
    assert best.load < 0.95


def test_a_rate_that_is_too_high_names_one_that_is_served():
    with pytest.raises(InfeasibleError, match=r"at most ([0-9.]+) requests/s") as error:
        served(rate=10_000, tp=1)
    rate = float(str(error.value).partition("at most ")[2].split()[0])
    assert served(rate=0.99 * rate, tp=1).best.num_devices == 8


def test_stated_workers_are_priced_nearer_to_their_saturation():
    rate = 0.97 * served(rate=20, tp=1, dp=8).best.saturation_requests_per_s
    with pytest.raises(InfeasibleError, match="95% of the saturation"):
        served(rate=rate, tp=1)
    assert served(rate=rate, tp=1, dp=8).best.load == pytest.approx(0.97)
    with pytest.raises(InfeasibleError, match="99% of the saturation"):
        served(rate=rate * 1.03, tp=1, dp=8)


def test_answers_in_flight_obey_littles_law():
    # 2.5 requests/s of a worker, each with an answer that grows for as long as it takes.
    best = served(rate=5, tp=1, dp=2).best
    growing_s = best.e2e.mean_s - best.ttft.mean_s
    assert best.sequences_in_flight == pytest.approx(2.5 * growing_s, rel=1e-9)
    assert growing_s == pytest.approx(127 * best.tpot.mean_s, rel=1e-6)


def test_shared_prefixes_save_devices():
    alone = served(rate=60)
    shared = served(rate=60, shared_prefix=1008, num_prefixes=4)
    assert shared.best.cache_hit_share > 0.9
    assert shared.best.saturation_requests_per_s / shared.best.num_devices > (
        1.2 * alone.best.saturation_requests_per_s / alone.best.num_devices
    )


def test_the_cheapest_system_answers():
    found = served(rate=20, beside=["8xA100", "8xH200"])
    prices = [fleet.cost_usd_per_million_tokens for fleet in (found.best, *found.others)]
    assert prices[0] == min(prices)
    systems = {fleet.system for fleet in (found.best, *found.others)}
    assert systems == {"8xH100", "8xA100", "8xH200"}


def test_a_trace_is_played(tmp_path):
    rows = [{"arrival_s": 0.5 * n, "prompt_tokens": 600 + n, "answer_tokens": 50,
             "conversation": n % 3} for n in range(12)]  # fmt: skip
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(rows))
    trace = load_trace(file)
    assert trace.rate_per_s == pytest.approx(2.0)
    assert trace.kept_tokens[0] == 650
    found = mw.serve("llama3.1-8b", on="8xH100", framework="vllm", trace=str(file))
    assert found.best.num_simulated == 12
    # From the second request on a conversation finds its turn before, up to whole blocks.
    assert found.best.cache_hit_share > 0.7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival,prompt_tokens,answer_tokens\n0,1,2\n", "did you mean arrival_s"),
        ("arrival_s,prompt_tokens,answer_tokens\n0,x,2\n1,2,3\n", "prompt_tokens of request 1"),
        ("arrival_s,prompt_tokens,answer_tokens\n0,1,2\n1,2,0\n", "answer_tokens of request 2"),
        ("arrival_s,prompt_tokens,answer_tokens,prefix\n0,1,2,a\n", "with prefix_tokens"),
        ("", "holds no requests"),
    ],
)
def test_faults_of_a_trace_are_named(tmp_path, text, words):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(SpecError, match=words):
        load_trace(file)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("--rate 500 --prompt 4k --answer 512 --tp 1", 3, "at most"),
        ("--rate 0 --prompt 4k --answer 512", 2, "--rate"),
        ("--rate 5 --prompt 4k", 2, "--answer: is needed"),
        ("--rate 5 --prompt 4k --answer 512 --batch 4", 2, "--batch: has no effect"),
        ("--rate 5 --prompt 4k --answer 512 --pp 2", 2, "--pp"),
        ("--rate 5 --prompt 4k --answer 512 --percentile 120", 2, "--percentile"),
        ("--batch 5 --context 4k --percentile 90", 2, "applies only with --rate"),
        ("--rate 5 --prompt 1k --answer 512 --with shared_prefix=2k", 2, "shared_prefix"),
        ("--trace none.csv --max-ttft 1s", 2, "no such file"),
        ("--rate 5 --prompt 4k --answer 512 --max-ttft 1ms", 3, "mean TTFT"),
    ],
)
def test_refusals_of_the_command(capsys, words, status, told):
    command = ["serve", "llama3.1-8b", "--on", "2xH100", "--framework", "vllm", *words.split()]
    assert main(command) == status
    assert told in capsys.readouterr().err


def test_the_screen_leads_with_the_devices(capsys):
    words = [
        "--on",
        "2xH100",
        "--framework",
        "vllm",
        "--rate",
        "2",
        "--prompt",
        "1k",
        "--answer",
        "64",
    ]
    assert main(["serve", "llama3.1-8b", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = "FITS      1 device of 2xH100: 1 x (tp1)"
    assert any(line.startswith(told) for line in lines[:4])


def test_a_given_split_of_workers_is_priced():
    asked = {**ASKED, "batch": 64, "max_ttft": "2s", "disaggregated": True}
    free = mw.serve("llama3.1-8b", **asked).best
    numbers = f"{free.prefill.number}P{free.decode.number}D"
    same = mw.serve("llama3.1-8b", **asked, workers=numbers).best
    assert same.tokens_per_s == pytest.approx(free.tokens_per_s, rel=0.02)
    other = mw.serve("llama3.1-8b", **asked, workers="1P1D").best
    assert (other.prefill.number, other.decode.number) == (1, 1)
    assert other.tokens_per_s <= 1.001 * free.tokens_per_s
    with pytest.raises(InfeasibleError, match="9P1D on 8 devices"):
        mw.serve("llama3.1-8b", **asked, workers="9P1D")
