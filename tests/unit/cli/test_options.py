"""Wrong options: one clear message that names the option, all of them at once, none ignored."""

import json
import os
from pathlib import Path

import pytest
from sampled import one_in

from meshwright.ask.kinds import decimal_number, one_of, quantity, whole_number
from meshwright.ask.questions import COMMANDS, Sweep
from meshwright.ask.reading import Reading
from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.cli.main import main

pytestmark = pytest.mark.usefixtures("kept_answers")

QUESTION = ["gpt2-medium", "--on", "8xH100", "--seq", "1024", "--global-batch", "64"]
SERVING = ["gpt2-medium", "--on", "8xH100", "--batch", "8", "--context", "1k"]


def complaint(capsys, *words):
    """Return what a command says on standard error after exit status 2."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def faults(capsys, *words):
    """Return the faults of a command that fails with exit status 2, as data."""
    assert main([*words, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)["error"]["faults"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seq", "0"), ("--seq", "0.3k"), ("--seq", "k"), ("--seq", "-8"), ("--seq", "9" * 30),
        ("--global-batch", "0"), ("--global-batch", "many"), ("--global-batch", ""),
        ("--precision", "bf17"), ("--with imbalance", "0.5"),
        ("--with imbalance", "nan"), ("--with imbalance", "inf"), ("--with imbalance", "much"),
        ("--tokens", "-1T"), ("--tokens", "0"),
        ("--tokens", "1e999"), ("--tokens", "5 GB"), ("--tp", "two"), ("--tp", "0"), ("--tp", "2,"),
        ("--tp", "²"), ("--cp", "x"), ("--pp", "x"), ("--dp", "x"), ("--ep", "x"),
        ("--with etp", "x"), ("--tatp", "x"), ("--with dp_shard", "x"), ("--vpp", "x"),
        ("--mbs", "x"),
        ("--recompute", "some"), ("--schedule", "2f2b"), ("--with cp_kind", "helix"),
        ("--offload", "disk"), ("--zero", "4"), ("--with dp_overlap", "1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["plan", "estimate", "fit", "check"])
def test_a_wrong_value_is_one_line_that_names_the_option(capsys, command, option, value):
    err = complaint(
        capsys, command, *QUESTION, *option.split()[:-1], f"{option.split()[-1]}={value}"
    )
    assert err.startswith(f"error: {option}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option"), [("plan", "--with sp"), ("estimate", "--sp"), ("check", "--sp")]
)
def test_a_rare_option_is_named_as_it_is_given(capsys, command, option):
    err = complaint(capsys, command, *QUESTION, *f"{option}=maybe".split())
    assert err.startswith(f"error: {option}: ")


@pytest.mark.parametrize("value", ["0", "-1", "few"])
@pytest.mark.parametrize("option", ["--top", "--without"])
def test_wrong_numbers_of_a_search(capsys, tmp_path, option, value):
    words = [*QUESTION] if option == "--top" else ["--from", str(tmp_path / "none.json")]
    assert f"{option}: found {value!r}" in complaint(capsys, "plan", *words, f"{option}={value}")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--batch", "0"), ("--context", "x"), ("--max-latency", "-5 ms"), ("--max-latency", "5"),
     ("--kv-cache", "fp17"), ("--weights", "none"), ("--with imbalance", "0"), ("--top", "0")],
)  # fmt: skip
def test_wrong_values_of_serving(capsys, option, value):
    words = list(SERVING)
    if option in words:
        del words[words.index(option) : words.index(option) + 2]
    err = complaint(capsys, "serve", *words, *option.split()[:-1],
                    f"{option.split()[-1]}={value}")  # fmt: skip
    assert err.startswith(f"error: {option}: ")


@pytest.mark.parametrize("command", ["plan", "estimate", "fit", "check"])
def test_all_wrong_options_are_told_at_once(capsys, command):
    found = faults(
        capsys, command, "gpt2-medium", "--on", "8xH100", "--seq", "x", "--precision", "y",
        "--tokens", "z", "--tp", "0", "--zero", "9", "--recompute", "a",
    )  # fmt: skip
    paths = {fault["path"] for fault in found}
    assert paths == {
        "--seq", "--global-batch", "--precision", "--tokens", "--tp", "--zero", "--recompute",
    }  # fmt: skip


def test_unknown_names_are_told_beside_wrong_options(capsys):
    found = faults(
        capsys, "plan", "gpt9", "--on", "8xH900", "--seq", "0", "--global-batch", "1",
        "--optimizer", "adamw",
    )  # fmt: skip
    text = " ".join(f"{fault['path']} {fault['message']}" for fault in found)
    assert len(found) == 4
    assert all(word in text for word in ("gpt9", "H900", "--seq", "adamw"))


def test_an_unknown_name_alone_keeps_its_kind(capsys):
    assert main(["plan", "gpt2-medum", *QUESTION[1:], "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["kind"] == "unknown_name"
    assert "did you mean gpt2-medium" in error["message"]


def test_missing_options_of_a_search_are_told_at_once(capsys):
    paths = {fault["path"] for fault in faults(capsys, "plan")}
    assert paths == {"MODEL", "--on", "--seq", "--global-batch"}
    paths = {fault["path"] for fault in faults(capsys, "serve")}
    assert paths == {"MODEL", "--on", "--batch", "--context"}


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ([*QUESTION, "--without", "1"], {"--without"}),
        ([*QUESTION, "--pareto", "--out", "x.json", "--top", "3"], {"--out", "--top"}),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(capsys, tmp_path, monkeypatch, words, idle):
    monkeypatch.chdir(tmp_path)
    assert {fault["path"] for fault in faults(capsys, "plan", *words)} == idle


def test_an_earlier_plan_states_the_question(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    assert main(["estimate", *QUESTION, "--out", path]) == 0
    capsys.readouterr()
    words = ["--from", path, "--without", "1", *QUESTION, "--tp", "2", "--vpp", "2", "--top", "2"]
    paths = {fault["path"] for fault in faults(capsys, "plan", *words)}
    assert paths == {"MODEL", "--on", "--seq", "--global-batch", "--tp", "--vpp", "--top"}
    assert "--without: is needed" in complaint(capsys, "plan", "--from", path)


def test_a_workload_file_states_the_workload(capsys, tmp_path):
    path = tmp_path / "work.yaml"
    path.write_text("kind: training\nglobal_batch_size: 8\nsequence_length: 1024\n"
                    "optimizer: megatron-adam\n", encoding="utf-8")  # fmt: skip
    words = ["gpt2-medium", "--on", "8xH100", "--workload", str(path)]
    assert main(["estimate", *words]) == 0
    capsys.readouterr()
    paths = {
        f["path"] for f in faults(capsys, "estimate", *words, "--seq", "1k", "--with", "async_tp")
    }
    assert paths == {"--seq", "--with async_tp"}


@pytest.mark.parametrize("command", ["estimate", "fit", "check"])
def test_one_strategy_has_one_value_of_each(capsys, command):
    found = faults(capsys, command, *QUESTION, "--tp", "2,4", "--zero", "0,1", "--mbs", "1,2")
    assert {fault["path"] for fault in found} == {"--tp", "--zero", "--mbs"}


def test_shards_divide_the_replicas(capsys):
    err = complaint(capsys, "estimate", *QUESTION, "--dp", "4", "--with", "dp_shard=3")
    assert err == "error: --with dp_shard: 3 does not divide dp 4 (a divisor of dp)\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--tp", "2,3"], "tp"), (["--dp", "64"], "dp"), (["--ep", "2"], "ep"),
        (["--tatp", "2"], "tatp"), (["--mbs", "65"], "micro_batch_size"),
        (["--vpp", "5"], "num_virtual_stages"), (["--with", "dp_shard=3"], "dp_shard"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pareto", [[], ["--pareto"]])
def test_fixed_degrees_that_no_strategy_has_are_told(capsys, words, name, pareto):
    assert [f["path"] for f in faults(capsys, "plan", *QUESTION, *words, *pareto)] == [name]


def test_an_unusual_micro_batch_may_be_fixed(capsys):
    assert main(["plan", *QUESTION, "--global-batch", "40", "--mbs", "5", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["strategy"]["micro_batch_size"] == 5


def test_an_output_file_needs_its_folder(capsys, tmp_path):
    for command in ("plan", "estimate"):
        err = complaint(capsys, command, *QUESTION, "--out", str(tmp_path / "none" / "p.json"))
        assert err.startswith("error: --out: there is no folder ")
        err = complaint(capsys, command, *QUESTION, "--out", str(tmp_path))
        assert "is a folder" in err
        for nameless in ("", f"{tmp_path}/new/"):
            err = complaint(capsys, command, *QUESTION, "--out", nameless)
            assert err == f"error: --out: {nameless!r} names no file\n"


WRITING = {
    ("plan", "out"): ["llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "8"],
    ("loop", "report"): ["llama3-8b", "--on", "8xH100", "--prompts", "64", "--answer", "1024"],
    ("estimate", "out"): ["llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "8"],
    ("plan", "report"): ["llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "8"],
    ("estimate", "report"): ["llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "8"],
    ("serve", "out"): SERVING, ("serve", "report"): SERVING,
    ("map", "report"): ["fft-64x64", "--on", "8xA100"],
    ("compare", "report"): ["llama3-8b", "--on", "8xH100", "--seq", "4096", "--global-batch", "8"],
    ("explain", "report"): ["plan.json"], ("explain", "picture"): ["plan.json"],
    ("simulate", "trace"): ["plan.json"], ("simulate", "picture"): ["plan.json"],
    ("route", "out"): ["flows.json"], ("place", "out"): ["plan.json"],
    ("partition", "picture"): ["llama3-8b", "--on", "4xWSE-3", "--seq", "4096"],
    ("partition", "report"): ["llama3-8b", "--on", "4xWSE-3", "--seq", "4096"],
    ("fuse", "picture"): ["gpt3-175b-layer", "--on", "SN10"],
    ("fuse", "report"): ["gpt3-175b-layer", "--on", "SN10"],
    ("read", "out"): ["torch.nn:Linear"], ("sweep", "out"): ["sweep.yaml"],
    ("sweep", "csv"): ["sweep.yaml"], ("sweep", "picture"): ["sweep.yaml"],
    ("sweep", "report"): ["sweep.yaml"], ("validate", "document"): [],
    ("show walk", "report"): ["tp"], ("validate", "report"): [],
    ("calibrate", "out"): [], ("measure", "out"): [],
}  # fmt: skip
OF_FOLDERS = {("export", "out"), ("study", "out")}


def test_every_option_that_names_a_file_to_write_is_tried():
    writes = {"out", "picture", "trace", "csv", "report", "document"}
    found = {
        (n, o.name) for n, c in COMMANDS.items() for o in c.options.values() if o.name in writes
    }
    found -= {("explain", "trace"), ("serve", "trace")}  # which are read
    assert found == WRITING.keys() | OF_FOLDERS
    assert all("force" in COMMANDS[name].options for name, _ in found)


@pytest.mark.parametrize(("verb", "name"), WRITING)
def test_every_command_leaves_what_is_there(verb, name, capsys, tmp_path, monkeypatch):
    """Told before any work: a device under --force too, and a file of the user's without it."""
    monkeypatch.chdir(tmp_path)
    words = [*verb.split(), *WRITING[verb, name], f"--{name}"]
    err = complaint(capsys, *words, "/dev/null", "--force")
    assert f"--{name}: '/dev/null' is a device (name a regular file)" in err
    suffixes = {"picture": ".svg", "report": ".html", "document": ".md"}
    suffix = ".md" if verb == "sweep" and name == "report" else suffixes.get(name, ".yaml")
    mine = tmp_path / f"mine{suffix}"
    mine.write_text("precious")
    err = complaint(capsys, *words, str(mine))
    if (verb, name) == ("sweep", "out"):  # a file of results is added to
        assert main([verb, *sweep_file(tmp_path), "--out", str(mine)]) == 2
        assert "is not a file of results" in capsys.readouterr().err
    else:
        assert f"--{name}: {str(mine)!r} exists already (--force, or another name)" in err
    link = tmp_path / f"link{suffix}"
    link.symlink_to(mine)
    assert f"--{name}: {str(link)!r} is a symbolic link" in complaint(capsys, *words, str(link))
    assert mine.read_text() == "precious"


def sweep_file(folder):
    path = folder / "sweep.yaml"
    path.write_text("name: x\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
                    "vary:\n  global_batch: [8]\n")  # fmt: skip
    return [str(path)]


RUN = ["--on", "8xH100", "--seq", "4096", "--global-batch", "8"]
READING = [
    ["plan", "FILE", *RUN], ["plan", "llama3-8b", "--on", "FILE", *RUN[2:]],
    ["plan", "llama3-8b", "--on", "8xH100", "--workload", "FILE"],
    ["plan", "llama3-8b", *RUN, "--calibration", "FILE"],
    ["plan", "llama3-8b", *RUN, "--measured", "FILE"], ["map", "FILE", *RUN[:2]],
    ["plan", "--from", "FILE", "--without", "1"], ["estimate", "FILE", *RUN],
    ["explain", "FILE"], ["explain", "llama3-8b", *RUN[:2], "--from", "FILE"],
    ["estimate", "--from", "FILE", *RUN[:2]],
    ["simulate", "FILE"], ["simulate", "flows", "FILE"], ["route", "FILE"], ["place", "FILE"],
    ["export", "FILE", "torch"], ["partition", "--layers", "FILE", "--capacity", "1GB"],
    ["fuse", "FILE", "--on", "SN10"], ["show", "model", "FILE"], ["show", "chip", "FILE"],
    ["show", "system", "FILE"], ["show", "graph", "FILE"], ["sweep", "FILE"],
    ["show", "walk", "tp", "--model", "FILE"],
    ["validate", "--measurements", "FILE"], ["calibrate", "FILE"], ["read", "FILE"],
]  # fmt: skip


@pytest.mark.parametrize("words", one_in(3, READING), ids=lambda words: " ".join(words[:4]))
@pytest.mark.parametrize("kind", ["fifo", "endless", "deep.json", "deep.yaml", "binary", "empty"])
def test_every_command_tells_a_file_that_cannot_be_read(words, kind, capsys, tmp_path):
    path = tmp_path / (kind if "." in kind else f"{kind}.json")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "deep.json":
        path.write_text("[" * 200_000 + "]" * 200_000)
    elif kind == "deep.yaml":
        path.write_text("a: " + "{a: " * 2_000 + "1" + "}" * 2_000)
    else:
        path.write_bytes(bytes(range(256)) * (kind == "binary"))
    given = [str(path) if word == "FILE" else word for word in words]
    err = complaint(capsys, *given)
    assert path.name in err
    assert not any(word in err for word in ("Traceback", "unexpected argument", "unknown option"))
    assert len(err) < 600


def test_numbers_are_read():
    assert whole_number("--seq", "8k", kilo=1024) == 8192
    assert whole_number("--seq", "1M", kilo=1024) == 1_048_576
    assert whole_number("--mbs", "2K") == 2000
    assert decimal_number("--imbalance", "1.25", least=1.0) == 1.25
    assert quantity("--tokens", "15T", "tokens") == 15e12
    assert quantity("--max-latency", "50 ms", "s") == pytest.approx(0.05)
    assert one_of("--sp", "on", ("on", "off")) == "on"


LENGTHS = [
    (["plan", "llama3-8b", "--on", "64xH100", "--tp", "8", "--global-batch", "64", "--seq"],
     ("workload", "sequence_length")),
    (["serve", "llama3-8b", "--on", "8xH100", "--batch", "1", "--context"],
     ("workload", "context_length")),
    (["serve", "llama3-8b", "--on", "8xH100", "--batch", "1", "--prompt"],
     ("workload", "prompt_length")),
    (["show", "graph", "llama3-8b", "--tokens"], ("dims", "tokens")),
]  # fmt: skip


@pytest.mark.parametrize(("words", "place"), LENGTHS, ids=lambda entry: entry[-1])
@pytest.mark.parametrize(("text", "tokens"), [("16k", 16384), ("0.125M", 131_072)])
def test_lengths_are_binary_everywhere(words, place, text, tokens, capsys):
    assert main([*words, text, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in place:
        found = found[name]
    assert found == tokens


def test_counts_of_sequences_are_decimal(capsys):
    assert main(["estimate", *QUESTION[:-1], "1k", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"]["global_batch_size"] == 1000


def test_two_files_of_one_command_are_two(capsys, tmp_path):
    """Neither another output nor what the command reads, under --force too."""
    (path,), other = sweep_file(tmp_path), str(tmp_path / "x.md")
    before = Path(path).read_text()
    for name in ("--csv", "--out"):
        err = complaint(capsys, "sweep", path, name, path, "--force")
        assert err == f"error: {name}: {path!r} is FILE too (another name)\n"
        err = complaint(capsys, "sweep", path, name, other, "--report", f"{tmp_path}/./x.md")
        assert f"{name}: {other!r} is --report too" in err
    assert Path(path).read_text() == before


def test_a_number_of_paths_that_never_ends_is_refused(capsys):
    err = complaint(capsys, "route", "demands.json", "--paths", "100000")
    assert err.startswith("error: --paths: found '100000', expected a whole number from 1 to 1024")


def test_an_output_file_in_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = Sweep.ask({"file": "sweep.yaml", "out": "plan.json"})
    assert (asked.out, asked.csv) == (Path("plan.json"), None)


def test_reading_keeps_complaints_until_done():
    def fail(error):
        raise error

    reading = Reading()
    reading.done()
    reading.value(fail, UnknownNameError("chip", "H1", ("H100",)))
    with pytest.raises(UnknownNameError):
        reading.done()
    reading.fault("--tp", "is wrong", "tp=2")
    assert reading.value(int, "3") == 3
    with pytest.raises(SpecError) as error:
        reading.done()
    assert [fault.path for fault in error.value.faults] == ["", "--tp"]


@pytest.mark.parametrize("command", ["plan", "estimate", "explain", "partition", "validate"])
def test_help_tells_of_constants_of_ones_own(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "--calibration NAME" in capsys.readouterr().out


def test_a_system_without_its_option_is_told(capsys):
    err = complaint(capsys, "plan", "llama3-8b", "8xH100")
    assert err == "error: unexpected argument '8xH100'; did you mean --on 8xH100?\n"


def test_a_rare_option_is_told_by_its_spelling(capsys):
    assert main(["fit", "m", "--cp-kind=ulysses"]) == 2
    assert "did you mean --with cp_kind=ulysses?" in capsys.readouterr().err
