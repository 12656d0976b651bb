"""``fuse``: the published layer, any graph, the picture, and what is refused."""

import json
import xml.etree.ElementTree as ET

import pytest

from meshwright.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_answers")

LAYER = ["gpt3-175b-layer", "--on", "SN10", "--tp", "4", "--pp", "2", "--link", "25GB/s"]


def output(capsys, *words):
    assert main(["fuse", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        LAYER,
        ["fft-64x64", "--on", "SN10", "--chips", "1000000000000", "--link", "25GB/s"],
        pytest.param([*LAYER, "--kernel-by-kernel", "--tile", "64"], marks=pytest.mark.slow),
        ["gpt3-175b-layer", "--on", "SN10", "--tp", "8", "--link", "25GB/s", "--tile", "64"],
        ["fft-1024x1024", "--on", "H100"],
        ["llama3-8b", "--on", "H100", "--tile", "64", "--micro-batch", "4", "--tokens", "1k"],
    ],
    ids=lambda words: " ".join(words[-3:]),
)
def test_the_screen_fits_100_columns(capsys, words):
    text = output(capsys, *words)
    lines, whole = text.splitlines(), output(capsys, *words, "--detail").splitlines()
    assert len(lines) <= 24
    assert max(map(len, [*lines, *whole])) <= 100
    assert any("cores of each kernel" in line for line in whole)
    assert "by the closed-form model, not calibrated" in text
    assert lines[0].startswith(words[0].partition("-layer")[0])


def test_own_rules_split_tokens_beside_heads(capsys):
    words = ["gpt3-175b-layer", "--on", "SN10", "--tp", "4", "--link", "25GB/s", "--tile", "64"]
    words += ["--micro-batch", "16384"]
    data = json.loads(output(capsys, *words, "--json"))
    assert (data["splits"]["ln1"], data["splits"]["q"]) == ("tokens", "heads")


@pytest.mark.slow
def test_experts_pass_in_tiles_and_tables_stay_outside(capsys):
    link = ["--link", "25GB/s", "--tp", "8", "--tile", "64"]
    experts = json.loads(output(capsys, "mixtral-8x7b", "--on", "SN10", *link, "--json"))
    assert experts["gap"] == 0.0
    tables = json.loads(output(capsys, "dlrm-a", "--on", "SN10", *link, "--json"))
    pooled = next(
        part
        for part in tables["partitions"]
        if "pooled" in [kernel["name"] for kernel in part["kernels"]]
    )
    assert pooled["sram_bytes"] < 320e6
    assert pooled["moved_bytes"] > 65536 * 600 * 93 * 15 * 2 / 8


def test_the_picture_names_the_kernels_that_have_room(capsys, tmp_path):
    path = tmp_path / "layer.svg"
    output(capsys, *LAYER, "--tile", "64", "--picture", str(path))
    text = path.read_text("utf-8")
    words = {one.text for one in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")}
    assert {"ffn0 605", "Cores over time", "Resources over time", "DRAM"} <= words
    path.write_text("mine")
    assert main(["fuse", *LAYER, "--picture", str(path)]) == 2
    assert "exists already (--force" in capsys.readouterr().err
    output(capsys, *LAYER, "--tile", "64", "--picture", str(path), "--force")
    assert path.read_text("utf-8") == text


def test_a_group_of_any_size_is_divided_at_once(capsys):
    words = ["fft-64x64", "--on", "SN10", "--tile", "16", "--link", "25GB/s", "--json"]
    data = json.loads(output(capsys, *words, "--chips", str(10**12)))
    assert (data["tp"], data["pp"]) == (10**12, 1)


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["gpt3-175b-layer"], 2, "--on: is needed"),
        (["gpt3-175b-laye", "--on", "SN10"], 2, "did you mean gpt3-175b-layer"),
        (["gpt3-175b-layer", "--on", "SN1"], 2, "did you mean SN10"),
        (["gpt3-175b-layer", "--on", "SN10", "--tp", "0", "--tile", "x"], 2, "2 faults"),
        (["gpt3-175b-layer", "--on", "SN10", "--tp", "4"], 2, "--link: is needed"),
        (["gpt3-175b-layer", "--on", "SN10", "--tp", "4", "--chips", "8"], 2, "--tp: is chosen"),
        (["gpt3-175b-layer", "--on", "SN10", "--tile", "4k"], 2, "--tile: 4000 is longer"),
        (["gpt3-175b-layer", "--on", "SN10", "--tokens", "4k"], 2, "states its own sizes"),
        (["gpt3-175b-layer", "--on", "SN10", "--link", "1e300GB/s"], 2, "beyond 1e+30"),
        (["gpt3-175b-layer", "--on", "SN10", "--link", "25"], 2, "'25' has no unit"),
        (["gpt3-175b-layer", "--on", "WSE-2"], 3, "the chip has no DRAM"),
        (["gpt3-175b-layer", "--on", "SN10", "--tile", "1024"], 3, "a shorter tile needs less"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_what_cannot_be_fused_says_why(capsys, words, status, says):
    assert main(["fuse", *words]) == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("precision", "chip", "rate", "note"),
    [
        ("bf16", "H100", "bf16", False),
        ("fp8", "H100", "fp8", False),
        ("fp8", "SN10", "bf16", True),
        ("fp32", "SN10", "bf16", True),
    ],
)
def test_the_rate_is_that_of_the_numbers_or_the_screen_says_so(capsys, precision, chip, rate, note):
    words = ["llama3-8b", "--tokens", "512", "--tile", "64", "--on", chip, "--precision", precision]
    assert json.loads(output(capsys, *words, "--json"))["rate_of"] == rate
    text = output(capsys, *words)
    assert (f"at its rate of {rate}: {chip} states none for products of" in text) is note


def test_narrow_numbers_are_faster_where_the_chip_says_so(capsys):
    words = ["llama3-8b", "--tokens", "512", "--tile", "64", "--on", "H100", "--json"]
    wide, narrow = (
        json.loads(output(capsys, *words, "--precision", precision))
        for precision in ("bf16", "fp8")
    )
    cycles = wide["parts_s"]["compute_s"] / narrow["parts_s"]["compute_s"]
    assert cycles == pytest.approx(1979 / 989, rel=0.2)


@pytest.mark.slow
def test_long_partitions_are_named_by_their_largest_kernels(capsys):
    text = output(capsys, "gpt3-175b-layer", "--on", "SN10", "--tile", "64", "--tp", "8",
                  "--link", "25GB/s")  # fmt: skip
    assert "q, k, v, av, qk, softmax, drop1, ... (9)" in " ".join(text.split())


def test_a_micro_batch_that_dram_cannot_hold_is_refused_by_its_size(capsys):
    words = ["gpt3-175b-layer", "--on", "SN10", "--tile", "64", "--micro-batch", "1000000000"]
    assert main(["fuse", *words]) == 3
    message = "too little for the tensors of 1,000,000,000 sequences at once"
    assert message in capsys.readouterr().err
