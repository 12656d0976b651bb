"""partition: statuses, screens, JSON, pictures, and what is refused."""

import json
import re
from xml.etree import ElementTree

import pytest

from meshwright.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_answers")

FOUR_WAFERS = ["llama3-70b", "--on", "4xWSE-3", "--seq", "4k"]
LPU = ["llama3-70b", "--on", "64xGroq-LPU", "--seq", "4k", "--precision", "int8",
       "--weights", "int8"]  # fmt: skip
LAYERS = """name,size,time_s,output_bytes
a,120 MB,0.003,1000
b,90 MB,0.001,1000
c,60 MB,0.002,1000
"""


@pytest.fixture
def layers(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS, encoding="utf-8")
    return str(path)


def printed(capsys, status, words):
    assert main(["partition", *words]) == status, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize(
    ("status", "words", "shown"),
    [
        (0, FOUR_WAFERS, ["FITS  4 stages on 4 devices", "layer 19 - 60 (21 each)"]),
        (0, [*FOUR_WAFERS, "--batch", "8", "--groups", "4"], ["4 groups of 2"]),
        (0, ["llama3-8b", "--on", "8xH100", "--seq", "1k", "--level", "hbm", "--prefill"],
         ["to the first token", "l2", "a layer is too large"]),
        (0, ["llama3-8b", "--on", "8xWSE-3", "--seq", "4k", "--training", "--batch", "8"],
         ["of a step", "optimizer", "kept activations"]),
        (3, LPU, ["NO FIT  82 of 82 layers are too large", "split", "over 16 devices", "prune"]),
        (3, [*LPU, "--tp", "16"], ["22 stages on 352 devices, but there are 64"]),
        (3, ["llama3-8b", "--on", "8xH100", "--seq", "4k"], ["stream", "l2 is a cache"]),
    ],
)  # fmt: skip
def test_screens_say_what_fits(capsys, status, words, shown):
    default = printed(capsys, status, words).splitlines()
    assert len(default) <= 24
    assert any(line.startswith("next ") for line in default)
    out = printed(capsys, status, [*words, "--detail"])
    assert max(len(line) for line in out.splitlines()) <= 100
    one_line = " ".join(out.split())
    assert [text for text in shown if " ".join(text.split()) not in one_line] == []


def test_measured_layers_are_cut_by_a_stated_capacity(capsys, layers):
    out = printed(capsys, 0, ["--layers", layers, "--capacity", "220MB"])
    assert "2 stages" in out
    assert "6 ms a pass, 3 ms on the slowest stage" in out
    data = json.loads(printed(capsys, 0, ["--layers", layers, "--capacity", "220MB", "--json"]))
    assert [stage["last_layer"] for stage in data["stages"]] == ["a", "c"]
    assert data["proof"] == {"num_stages": 2, "lower_bound": 2, "weights_lower_bound": 2}
    assert data["workload"] is None
    assert data["rates"] is None
    greedy = ["--layers", layers, "--capacity", "220MB", "--objective", "count", "--json"]
    data = json.loads(printed(capsys, 0, greedy))
    assert [stage["last_layer"] for stage in data["stages"]] == ["b", "c"]


def test_measured_layers_that_are_too_large_get_proposals(capsys, layers):
    data = json.loads(printed(capsys, 3, ["--layers", layers, "--capacity", "50MB", "--json"]))
    assert data["fits"] is False
    assert data["too_large"] == ["a", "b", "c"]
    assert [(offer["kind"], offer["num_devices"]) for offer in data["proposals"]] == [
        ("split", 6), ("prune", 3),
    ]  # fmt: skip


def test_fewer_weights_do_not_help_a_stage_of_more_devices_than_there_are(capsys):
    words = [*FOUR_WAFERS, "--tp", "8", "--json"]
    data = json.loads(printed(capsys, 3, words))
    kinds = {offer["kind"] for offer in data["proposals"]}
    assert "devices" in kinds
    assert "prune" not in kinds


def test_a_picture_is_drawn(capsys, tmp_path, layers):
    for number, words in enumerate((FOUR_WAFERS, ["--layers", layers, "--capacity", "220MB"], LPU)):
        path = tmp_path / f"{number}.svg"
        asked = [*words, "--picture", str(path)]
        shown = printed(capsys, 3 if words is LPU else 0, [*asked, "--json"])
        if words is LPU:  # nothing fits, so there is nothing to draw, which is said
            assert not path.exists()
            assert "--picture: no stage fits" in json.loads(shown)["warnings"][0]
            continue
        texts = list(ElementTree.parse(path).getroot().itertext())
        rows = [text for text in texts if re.match(r"\d+(-\d+)?: ", text)]
        assert len(rows) == (3, 2)[number]  # the two middle wafers share a row


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        ([], ["name either a model, a graph or a file"]),
        (["llama3-70b", "--layers", "x.csv"], ["name either a model, a graph or a file"]),
        (["llama3-70b", "--seq", "4k"], ["--on: is needed"]),
        (["llama3-70b", "--on", "4xWSE-3"], ["--seq: is needed"]),
        (
            ["llama3-7b", "--on", "4xWSE-9", "--capacity", "3", "--objective", "speed",
             "--batch", "0", "--tp", "x", "--precision", "bf15"],
            ["llama3-7b", "WSE-9", "--capacity", "--objective", "--tp", "--batch", "--seq",
             "bf15"],
        ),
        ([*FOUR_WAFERS, "--optimizer", "megatron-adam"], ["--optimizer: has no effect here"]),
        ([*FOUR_WAFERS, "--training", "--kv-cache", "fp8"], ["--kv-cache: has no effect here"]),
        ([*FOUR_WAFERS, "--level", "hbm"], ["WSE-3 has no 'hbm'"]),
        (["--layers", "none.csv", "--batch", "4"], ["none.csv", "--capacity: is needed",
                                                    "--batch: applies only with a model"]),
        (["--layers", "none.csv", "--level", "l2", "--capacity", "3 MB"],
         ["--level: applies only with --on and without --capacity"]),
        ([*FOUR_WAFERS, "--picture", "no/such/folder.svg"], ["there is no folder"]),
        ([*FOUR_WAFERS, "--groups", "4"], ["groups: 4 groups of a batch of 1"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_at_once(capsys, words, complaints):
    assert main(["partition", *words]) == 2
    told = capsys.readouterr().err
    assert [text for text in complaints if text not in told] == []
