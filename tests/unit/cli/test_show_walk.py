"""``show walk``: frames as lines, as data and as a page."""

import json

import pytest

from meshwright.cli.main import main
from meshwright.collectives.registry import collective_algorithms

pytestmark = pytest.mark.usefixtures("kept_answers")

MOST_BYTES = 300_000


def output(capsys, *words):
    assert main(["show", "walk", *words]) == 0
    return capsys.readouterr().out


def test_names_are_those_of_blocks_streams_and_collectives(capsys):
    names = json.loads(output(capsys, "--json"))
    assert list(names) == ["tp", "tp-sp", "tspp", "tatp", *collective_algorithms]
    assert len(output(capsys).splitlines()) == len(names)


@pytest.mark.parametrize(
    "words",
    [
        ("tp",), ("tp-sp", "--model", "llama3-8b", "--group", "8", "--seq", "8k"), ("tspp",),
        pytest.param(("tp-sp", "--model", "olmo2-7b", "--group", "8"), marks=pytest.mark.slow),
        ("tatp", "--form", "cycle", "--streamed", "inputs"), ("ring_all_reduce",),
        ("even_wave_all_gather", "--group", "2x4"), ("in_network_all_reduce", "--size", "1", "GiB"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_lines_fit_a_terminal_and_a_page_stays_small(capsys, tmp_path, words):
    path = tmp_path / "walk.html"
    lines = output(capsys, *words, "--report", str(path)).splitlines()
    assert max(map(len, lines)) <= 100
    assert path.stat().st_size <= MOST_BYTES


def test_lines_tell_what_is_sent_and_held(capsys):
    """A token of gpt3-175b has 24 KiB: 2,048 of them 48 MiB, a quarter of which is 12 MiB."""
    text = " ".join(output(capsys, "tp-sp").split())
    assert "3 forward: all-gather of N, step 1 of 3" in text
    assert "sent: N[0] 0>1, N[1] 1>2, N[2] 2>3, N[3] 3>0" in text
    assert "of one device alone) and has sent 12.0 MiB" in text
    table = text[text.index("Collectives tensor") :]
    assert "N all-gather forward attention, qkv, tokens x hidden split by tokens" in table
    assert "N 48.0 MiB 36.0 MiB" in table


def test_data_holds_every_frame(capsys):
    walk = json.loads(
        output(
            capsys, *["tatp", "--group", "4", "--form", "ring", "--streamed", "weights", "--json"]
        )
    )
    assert [frame["title"] for frame in walk["frames"][:3]] == [
        "at rest", "round 1 of 4", "round 2 of 4",
    ]  # fmt: skip
    assert walk["frames"][1]["messages"][0] == {
        "source": 0, "destination": 3, "tensor": "W", "parts": [0], "adds": False, "num_hops": 3,
        "num_bytes": 12288 * 49152 * 2 / 4,
    }  # fmt: skip
    assert walk["frames"][0]["held"][1] == [
        {"tensor": "X", "parts": [1], "terms_of": []},
        {"tensor": "W", "parts": [1], "terms_of": []},
    ]
    assert walk["most_held_bytes"] == max(max(f["held_bytes"]) for f in walk["frames"])


@pytest.mark.parametrize(("seq", "travels"), [("2k", "X"), ("48k", "W"), ("64k", "W")])
def test_the_smaller_tensor_travels_where_none_is_named(capsys, seq, travels):
    """W of gpt3-175b has 49,152 columns: as many tokens of X have as many bytes."""
    assert f": {travels} travels (form: stream)" in output(capsys, "tatp", "--seq", seq)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("pp",), ["unknown walk 'pp'", "tp"]),
        (("quite else",), ["unknown walk 'quite else'", ", ... (all: meshwright show walk)\n"]),
        (("tp", "--form", "hold"), ["--form", "has no effect on the walk tp",
                                  "it takes --group, --model, --seq"]),
        (("ring_all_reduce", "--seq", "4k"), ["--seq", "it takes --group, --size"]),
        (("tatp", "--form", "holt"), ["unknown tensor stream 'holt'", "hold"]),
        (("tatp", "--streamed", "sums"), ["--streamed", "'sums'"]),
        (("tatp", "--group", "2x4"), ["--group", "no sides", "such as 8"]),
        (("tp", "--group", "5"), ["--group", "5 devices do not divide", "96 query heads",
                                  "divisor of 32"]),
        (("tp", "--group", "16"), ["--group", "16 devices", "at most 8"]),
        (("tp", "--group", "1"), ["--group", "has 1 member (", "2 to 16"]),
        (("tp", "--group", "four"), ["--group", "'four' is not a number of members", "2x4"]),
        (("tp", "--model", "mixtral-8x7b"), ["--model", "route", "gpt3-175b"]),
        (("tatp", "--model", "mixtral-8x7b"), ["--model", "no dense feed-forward network"]),
        (("corner_wave_all_reduce", "--group", "2x4"), ["--group", "does not run", "3x4"]),
        (("pipelined_wave_16_all_reduce", "--group", "4x4"), ["more than can be followed"]),
        (("tp", "--size", "3", "--group", "99"), ["--size", "has no effect", "99 members"]),
    ],
)  # fmt: skip
def test_faults_name_the_option_and_the_fix(capsys, words, parts):
    assert main(["show", "walk", *words]) == 2
    error = capsys.readouterr().err
    assert [part for part in parts if part not in error] == []


@pytest.mark.parametrize(
    ("words", "options"),
    [(("walk", "--group", "4", "--report", "walk.html"), ["--group", "--report"]),
     (("graph", "--tokens", "5", "--training"), ["--tokens", "--training"])],
)  # fmt: skip
def test_options_without_a_name_are_refused(capsys, words, options):
    assert main(["show", *words]) == 2
    error = capsys.readouterr().err
    assert [line.split()[1] for line in error.splitlines()[1:]] == [f"{name}:" for name in options]
    assert f"applies only with a {words[0]}" in error


def test_a_page_that_is_there_stays_unless_it_is_forced(capsys, tmp_path):
    path = tmp_path / "walk.html"
    path.write_text("mine", encoding="utf-8")
    words = ["show", "walk", "ring_all_gather", "--report", str(path)]
    assert main(words) == 2
    assert path.read_text("utf-8") == "mine"
    assert main([*words, "--force"]) == 0
    assert "Ring all-gather" in path.read_text("utf-8")
    assert main(["show", "walk", "ring_all_gather", "--report", str(tmp_path / "walk.md")]) == 2
    assert "does not end in .html" in capsys.readouterr().err
