"""plan, estimate, fit, check, explain: statuses, screens, JSON, plan files."""

import json
import subprocess
import sys

import pytest
from sampled import sampled

from meshwright.cli.main import main
from meshwright.train import plan_file as files

pytestmark = pytest.mark.usefixtures("kept_answers")

QUESTION = ["gpt2-medium", "--on", "8xH100", "--seq", "1024", "--global-batch", "64"]
TOO_LARGE = ["llama3-70b", "--on", "8xH100", "--seq", "8k", "--global-batch", "8"]
ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    """Return the path of a plan that a search wrote."""
    path = tmp_path_factory.mktemp("written") / "plan.json"
    assert main(["plan", *QUESTION, "--out", str(path)]) == 0
    return path


def printed(capsys, status, *words):
    """Return what a command prints, after checking its status."""
    assert main(list(words)) == status, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return out


SCREENS = [
    (0, ["plan", *QUESTION]),
    (0, ["plan", *QUESTION, "--pareto"]),
    pytest.param(
        0,
        ["plan", "mixtral-8x7b", "--on", "wafer-6x8", "--seq", "2k", "--global-batch", "48"],
        marks=pytest.mark.slow,
    ),
    (0, ["serve", *QUESTION[:3], "--batch", "64", "--context", "1k"]),
    (0, ["estimate", *QUESTION, "--tp", "2", "--recompute", "full", "--tokens", "1T"]),
    (3, ["estimate", *TOO_LARGE, "--tp", "8"]),
    (0, ["fit", *QUESTION]),
    (3, ["fit", *TOO_LARGE, "--tp", "8"]),
    (0, ["check", *QUESTION, "--tp", "4", "--pp", "2"]),
    (2, ["check", *QUESTION, "--tp", "3", "--pp", "5", "--schedule", "interleaved"]),
]


TWO_HOSTS = ["gpt2-medium", "--on", "16xRTX4090"]
STEP = ["--seq", "1024", "--global-batch", "64"]
SERVED = ["--batch", "64", "--context", "1k", "--top", "1"]


@pytest.mark.parametrize(
    "words",
    sampled(
        [
            ["serve", *TWO_HOSTS, *SERVED],
            ["map", "fft-1024x1024", *TWO_HOSTS[1:], "--precision", "fp16"],
            ["estimate", *TWO_HOSTS, *STEP],
            ["fit", *TWO_HOSTS, *STEP],
            ["show", "collectives", *TWO_HOSTS[1:], "--size", "1MiB", "--group", "16"],
            ["plan", *TWO_HOSTS, *STEP, "--dp", "16"],
            ["explain", *TWO_HOSTS, *STEP],
            ["compare", *TWO_HOSTS, *STEP, "--against", "fsdp"],
        ],
        5,
    ),
    ids=lambda words: " ".join(words[:2]),
)
def test_another_network_is_on_the_screen_with_its_one_adapter_a_host(capsys, words):
    out = printed(capsys, 0, *words, "--network", "10GbE")
    assert "16xRTX-4090 (one 10GbE adapter a host)" in " ".join(out.split())


def test_a_slower_network_slows_the_step(capsys):
    def step_s(*network):
        words = ["estimate", *TWO_HOSTS, *STEP, "--json", *network]
        return json.loads(printed(capsys, 0, *words))["best"]["estimate"]["step_time_s"]

    fast, slow = step_s("--network", "400GbE"), step_s("--network", "10GbE")
    assert fast < step_s() < slow


def test_check_reads_the_network_too(capsys):
    assert main(["check", *TWO_HOSTS, *STEP, "--network", "100Gbps"]) == 2
    assert "did you mean 100GbE" in capsys.readouterr().err


VOLTA = ["gpt2-medium", "--on", "8xV100"]


@pytest.mark.parametrize("words", sampled([["fit", *STEP], ["serve", *SERVED], ["plan", *STEP]], 2))
def test_chips_without_bf16_are_asked_in_fp16_and_the_screen_says_so(capsys, words):
    out = printed(capsys, 0, words[0], *VOLTA, *words[1:])
    assert "fp16 (V100 has no bf16)" in " ".join(out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["plan", *STEP], ["estimate", *STEP], ["fit", *STEP], ["compare", *STEP],
        ["explain", *STEP], ["serve", *SERVED],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_type_that_the_chip_lacks_is_refused_with_one_that_it_has(capsys, words):
    assert main([words[0], *VOLTA, *words[1:], "--precision", "bf16"]) == 2
    told = capsys.readouterr().err
    assert "V100 has no rate for bf16" in told
    assert "--precision fp16" in told


def test_check_names_the_type_that_the_chip_lacks(capsys):
    out = printed(capsys, 2, "check", *VOLTA, *STEP, "--precision", "bf16", "--json")
    (fault,) = json.loads(out)["faults"]
    assert fault["rule"] == "precision"
    assert "--precision fp16" in fault["fix"]


@pytest.mark.parametrize(("status", "words"), SCREENS, ids=lambda value: str(value)[:60])
def test_screens_are_narrow_and_plain(capsys, status, words):
    out = printed(capsys, status, *words)
    assert max(len(line) for line in out.splitlines()) <= 100
    assert ESCAPE not in out
    assert words[0] == "check" or len(out.splitlines()) <= 24
    assert out.endswith("\n")
    assert not out.endswith("\n\n")


@pytest.mark.parametrize(("status", "words"), SCREENS, ids=lambda value: str(value)[:60])
def test_json_is_one_object_of_the_same_status(capsys, status, words):
    assert isinstance(json.loads(printed(capsys, status, *words, "--json")), dict)


@pytest.mark.slow
def test_screens_of_plan_files(capsys, plan_file):
    path = str(plan_file)
    for words in (["explain", path], ["plan", "--from", path, "--without", "3"]):
        out = printed(capsys, 0, *words)
        assert max(len(line) for line in out.splitlines()) <= 100
        assert ESCAPE not in out


@pytest.mark.parametrize("top", sampled([9, 1, 8, 30], 1))
def test_a_ranking_may_be_longer_than_what_is_perturbed(capsys, top):
    assert main(["plan", *QUESTION, "--top", str(top), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    texts = [entry["plan"] for entry in (found["best"], *found["runners_up"])]
    assert len(texts) == top
    trials = found["robustness"]["trials"]
    assert trials["best_fraction"].keys() <= set(texts[:8])
    assert set(trials["run"]) <= set(texts[:8])


def test_nothing_fits_is_three(capsys):
    assert main(["plan", "llama3-405b", *TOO_LARGE[1:]]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: no plan for llama3.1-405b fits 8xH100")
    assert main(["plan", "llama3-405b", *TOO_LARGE[1:], "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "infeasible"
    assert error["faults"] == []


def test_the_verdict_comes_first(capsys):
    lines = printed(capsys, 0, "plan", *QUESTION).splitlines()
    assert lines[0].startswith("gpt2-355m on 8xH100: sequence 1,024, global batch 64")
    assert next(filter(None, lines[1:])).startswith("FITS  ")
    assert any(line.startswith("plan      tp") for line in lines[:9])
    lines = printed(capsys, 3, "fit", *TOO_LARGE, "--tp", "8").splitlines()
    assert next(filter(None, lines[1:])).startswith("NO FIT  ")


def test_an_estimate_prices_the_plan_of_a_search(capsys, plan_file):
    best = files.load(plan_file).best
    s, plan_options = best.strategy, best.plan_options
    words = [
        "--tp", f"{s.tp:.0f}", "--pp", f"{s.pp:.0f}", "--cp", f"{s.cp:.0f}", "--dp", f"{s.dp:.0f}",
        "--with", f"dp_shard={s.dp_shard:.0f}", "--vpp", f"{s.num_virtual_stages:.0f}",
        "--mbs", f"{s.micro_batch_size:.0f}", "--zero", str(plan_options.zero_stage),
        "--recompute", plan_options.recompute, "--schedule", plan_options.schedule,
        "--sp", "on" if plan_options.sequence_parallel and s.tp > 1 else "off",
        "--offload", plan_options.offload,
    ]  # fmt: skip
    data = json.loads(printed(capsys, 0, "estimate", *QUESTION, *words, "--json"))
    assert data["best"]["plan"] == best.text
    assert data["fastest_s"] == pytest.approx(best.estimate.step_time_s, rel=1e-9)


def test_fit_and_estimate_agree(capsys):
    words = [*QUESTION, "--tp", "2", "--recompute", "full"]
    fit = json.loads(printed(capsys, 0, "fit", *words, "--json"))
    best = json.loads(printed(capsys, 0, "estimate", *words, "--json"))["best"]
    assert fit["plan"] == best["plan"]
    for name in ("memory_bytes", "memory_parts_bytes", "fullest_stage"):
        assert fit[name] == best["estimate"][name]
    assert sum(fit["memory_parts_bytes"].values()) == pytest.approx(fit["memory_bytes"])


def test_what_would_fit_is_smaller_and_fits(capsys):
    data = json.loads(printed(capsys, 3, "fit", *TOO_LARGE, "--tp", "8", "--json"))
    assert not data["fits"]
    for entry in data["would_fit"]:
        estimate = entry["estimate"]
        assert estimate["memory_bytes"] <= estimate["memory_capacity_bytes"] < data["memory_bytes"]


def test_offered_fixes_are_legal(capsys):
    words = ["check", *QUESTION, "--sp", "off"]
    data = json.loads(printed(capsys, 2, *words, "--tp", "3", "--json"))
    fixes = {fault["fix"] for fault in data["faults"]}
    assert fixes == {"tp=4"}
    assert json.loads(printed(capsys, 0, *words, "--tp", "4", "--json"))["is_legal"]


def test_a_fix_of_a_huge_degree_is_found_at_once(capsys):
    data = json.loads(printed(capsys, 2, "check", *QUESTION, "--mbs", "999999999", "--json"))
    assert {fault["rule"] for fault in data["faults"]} == {"dp-batch"}


def test_estimate_refuses_what_check_refuses(capsys):
    words = [*QUESTION, "--tp", "3"]
    rules = json.loads(printed(capsys, 2, "check", *words, "--json"))["faults"]
    assert main(["estimate", *words, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert [f["path"] for f in error["faults"]] == [f["rule"] for f in rules]


def test_plan_files_make_the_round_trip(plan_file):
    text = plan_file.read_text(encoding="utf-8")
    plan = files.load(plan_file)
    assert files.to_json(plan) + "\n" == text
    assert files.from_json(files.to_json(plan)) == plan
    assert not list(plan_file.parent.glob("*.partial"))


@pytest.mark.slow
def test_lost_devices(capsys, plan_file, tmp_path):
    after = tmp_path / "after.json"
    words = ["plan", "--from", str(plan_file), "--without", "2", "--out", str(after), "--json"]
    data = json.loads(printed(capsys, 0, *words))
    assert data["num_lost"] == 2
    assert 0 < data["throughput_fraction"] < 1
    assert data["plan"]["best"]["estimate"]["num_devices_used"] <= 6
    assert data["plan"]["system"]["dead_devices"] == [6, 7]
    again = ["plan", "--from", str(after), "--without", "6"]
    assert main(again) == 2
    assert "--without: 6 lost of 6 devices" in capsys.readouterr().err


def test_a_missing_or_broken_plan_file_is_bad_input(capsys, tmp_path):
    broken = tmp_path / "broken.json"
    for text in ("", "[]", "{}", '{"format": 1}', '{"format": 99}', "\x00", '{"format": 1, '):
        broken.write_text(text, encoding="utf-8")
        for words in (["explain", str(broken)], ["plan", "--from", str(broken), "--without", "1"]):
            assert main(words) == 2
            err = capsys.readouterr().err
            assert err.startswith(f"error: {broken}: ")
    broken.write_bytes(b"\xff\xfe\x00")
    assert main(["explain", str(broken)]) == 2
    capsys.readouterr()
    assert main(["explain", "llama3-8b"]) == 2
    assert "there is no file 'llama3-8b' (a file of plan --out; a model needs --on)" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("framework", ["deepspeed", "megatron"])
def test_an_explained_plan_is_exported_to_its_framework(capsys, tmp_path, monkeypatch, framework):
    monkeypatch.chdir(tmp_path)
    printed(capsys, 0, "estimate", *QUESTION, "--framework", framework, "--out", "plan.json")
    screen = " ".join(printed(capsys, 0, "explain", "plan.json").split())
    assert screen.endswith(f"next meshwright export plan.json {framework}")


def test_explanation_has_shares_that_sum_to_one(capsys, plan_file):
    data = json.loads(printed(capsys, 0, "explain", str(plan_file), "--json"))
    assert sum(data["limits"].values()) == pytest.approx(1)
    faster = [change["faster_by_fraction"] for change in data["would_change"]]
    assert faster == sorted(faster, reverse=True)


@pytest.mark.slow
def test_a_pipe_gets_no_colour_and_no_progress():
    command = [sys.executable, "-m", "meshwright", "fit", *QUESTION]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ESCAPE not in done.stdout
    assert done.stderr == ""
