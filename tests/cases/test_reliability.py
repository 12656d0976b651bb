"""Inputs that took all memory, did not end, or ended in a traceback, with what is right for each.

Small files stand beside; what is large or binary is made here.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest
from limited_commands import ended, watched

FOLDER = Path(__file__).with_suffix("").with_name("reliability")
GPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --attention-dropout 0 "
    "--hidden-dropout 0 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 "
    "--global-batch-size 128 --bf16 --lr 3e-4 --train-iters 1000"
)
JOB = f"{GPT} --num-layers 32 --tensor-model-parallel-size 2\n"
RECIPE = """from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

cfg = llama3_8b_pretrain_config()
cfg.model.tensor_model_parallel_size = 2
cfg.model.pipeline_model_parallel_size = 2
cfg.train.global_batch_size = 64
pretrain(config=cfg, forward_step_func=forward_step)
"""
POD = """apiVersion: v1
kind: Pod
metadata: {{name: x}}
spec:
{node}  containers:
    - {{name: a, image: x, command: {command}, resources: {resources}}}
"""
EIGHT = "{limits: {nvidia.com/gpu: 8}}"
KERNEL = "chip,library,mode,op,num_gpus,devices_per_node,message_bytes,latency_us\n"
DISPATCH = "chip,mode,nodes,hidden,tokens,topk,dispatch_sms,dispatch_us,combine_us\n"
SPENT = "so it is not read further"


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        # What never ends, or doubles, is refused where it is, before it is built.
        ('f() { f "$@" "$@"; }\nf a b\n' + JOB, 2, SPENT),
        ('A=("" "")\n' + 'A=("${A[@]}" "${A[@]}")\n' * 24 + JOB, 2, SPENT),
        ("A[200000000]=1\n" + JOB, 2, "line 2: builds too many values"),
        ("for ((i=0; i<1000000000; i++)); do\n:\ndone\n" + JOB, 2, "takes too many steps"),
        ("i=0\nwhile [ $i -lt 1000000000 ]; do i=$((i+1)); done\n" + JOB, 2, "too many steps"),
        # Numbers of shells have 64 bits; a pattern that could take for ever is taken as false.
        ("X=99999\n" + "X=$((X*X))\n" * 14 + JOB, 0, "tp 2"),
        ('A=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\nif [[ $A =~ ^(a+)+$ ]]; then exit 0; fi\n'
         + JOB, 0, "may take too long"),
        (f"{GPT} --num-layers 2000000000\n", 2, "at most 10,000"),
        (f"{GPT} --num-layers 32 --pipeline-model-parallel-size 2 "
         "--pipeline-model-parallel-layout 'Et*4000000000|tL'\n", 2, "pipeline_model_parallel"),
        ('#SBATCH --comment="it\n' + JOB, 2, "No closing quotation"),
    ],
)  # fmt: skip
def test_scripts(tmp_path, text, status, says):
    (tmp_path / "a.sh").write_text(f"#!/bin/bash\n{text}")
    found, told = ended(tmp_path, "read", "a.sh", "--detail")
    assert found == status, told
    assert says in told


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        # What configures nothing is not known, and plays no part.
        ("X = 1j + 1\n", 0, "tp 2, pp 2"),
        ("X = 0x" + "f" * 6000 + "\n", 0, "tp 2, pp 2"),
        ('X = 1 % 0\nY = "%d" % "a"\nZ = "%(a)s" % {}\n', 0, "tp 2, pp 2"),
        ('d = {"a": 1}\nfor k in d:\n    d[k + "x"] = 1\n', 0, "tp 2, pp 2"),
        # What grows without end is refused with its line.
        ('X = "%1000000000d" % 5\n', 2, "line 1: builds too much text"),
        ('X = "a" * 100000\nX = X * 100000\n', 2, "line 2: builds too much text"),
        ("X = [0]\n" + "X.extend(X)\n" * 27, 2, "builds too many values"),
        ("X = []\nX.append(X)\n", 2, "nests too deeply"),
    ],
)
def test_python_files(tmp_path, text, status, says):
    (tmp_path / "a.py").write_text(text + RECIPE)
    found, told = ended(tmp_path, "read", "a.py")
    assert found == status, told
    assert says in told


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "services: {a: {command: 5}}\n", "is not a file of a supported program"),
        ("a.yaml", "services: {a: null}\n", "is not a file of a supported program"),
        ("a.yaml", POD.format(node="", command="5", resources=EIGHT), "is not a file"),
        ("a.yaml", POD.format(node="  nodeSelector: x\n", command="[python, t.py]",
                              resources=EIGHT), "starts no program"),
        ("a.yaml", POD.format(node="", command="[python, t.py]", resources="5"), "is not a file"),
        *[("a.yaml", f"a: {tag}\n", "is not YAML: expected a mapping node, but found sequence")
          for tag in ("!!map [1]", "!!set [1]")],
        *[("a.yaml", f"a: !!{kind} x\n", f"is not YAML: 'x' on line 1 is no {kind}")
          for kind in ("bool", "int", "float", "timestamp")],
        ("a.yaml", "a: &a {b: 1}\n" + "".join(
            f"x{i}: &x{i} [{', '.join([f'*x{i - 1}' if i else '*a'] * 10)}]\n"
            for i in range(12)), "builds too many values"),
        ("a.yaml", "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 1\n"
         "fsdp_config: {1: 2, ~: 3, 1.5: 4, true: 3}\n", "is not read"),
        ("a.toml", "a." * 3000 + "a = 1\n", "nests too deeply"),
    ],
)  # fmt: skip
def test_trees(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    found, told = ended(tmp_path, "read", name)
    assert found == 2, told
    assert says in told


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("k.csv.gz", gzip.compress(KERNEL.encode() * 9, mtime=0)[:40], "gzip is damaged"),
        ("k.csv", KERNEL.encode() + b"b60,\xff\xfe\n", "not UTF-8"),
        ("k.csv", f"{KERNEL}a100,vllm_custom,eager,0,8,8,8388608,138.0\n".encode(), "found '0'"),
        ("k.csv", f"{DISPATCH}h100,normal,1e-320,7168,12,8,4,105,159\n".encode(), "line 2: nodes"),
        ("k.csv", f"{DISPATCH}h200,normal,x,4096,16384,22,24,1538,2388\n".encode(), "nodes"),
    ],
)
def test_tables_of_kernels(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    found, told = ended(tmp_path, "validate", "--kernels", "--measurements", name)
    assert found == 2, told
    assert says in told


def test_a_table_that_is_no_file_or_a_bomb_is_refused(tmp_path):
    os.mkfifo(tmp_path / "k.csv")
    assert ended(tmp_path, "validate", "--kernels", "--measurements", "k.csv")[0] == 2
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"1," * 40_000_000, mtime=0))
    found, told = ended(tmp_path, "validate", "--kernels", "--measurements", "b.csv.gz")
    assert found == 2
    assert "more than 64 MiB" in told


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        # Nothing is sharded on one device: the space is empty, and that is said.
        ("plan gpt2-medium --on 1xH100 --seq 1k --global-batch 8 --zero 1", None, ""),
        ("plan gpt2-medium --on 8xH100 --seq 1k --global-batch 8 --pp 1M", 2, "pp"),
        # Four devices of a torus of 4 x 2 are its first line, a ring of four.
        ("plan gpt2-medium --on torus.yaml --seq 1k --global-batch 8", 0, "4"),
        ("show chip hot.yaml", 2, "more than the peak"),
        ("show chip far.yaml", 2, "beyond 1e+30"),
    ],
)
def test_questions(tmp_path, words, status, says):
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found, told = ended(tmp_path, *words.split())
    assert found == status if status is not None else found in (0, 3), told
    assert says in told


SLOW = """name: x
chip:
  name: X
  vendor: me
  family: x
  source: me
  matmul_rate: {bf16: 1 PFLOP/s}
  vector_rate: {fp32: 100 TFLOP/s}
  memories:
    - {name: hbm, capacity: 80 GiB, bandwidth: 1e-30 B/s}
  num_cores: 100
  peak_power: 300 W
  price: unknown
num_devices: 8
sources: {me: {title: me, url: "https://example.org"}}
levels:
  - {name: l, size: 8, kind: switch, bandwidth: 1e11 B/s, latency: 1 us}
"""


@pytest.mark.parametrize(
    ("question", "what"),
    [
        (["plan", "--seq", "1k", "--global-batch", "64"], "a step would take 6"),
        (["partition", "--level", "hbm", "--seq", "1k", "--training", "--batch", "64"],
         "a step would take 8"),
        (["serve", "--context", "1k", "--batch", "64"], "a pass would take 1"),
    ],
)  # fmt: skip
def test_a_time_that_no_machine_takes_is_no_answer(tmp_path, question, what):
    """1e10 bytes at 1e-30 B/s: it was a plan that FITS with 0 tokens/s, or nan of them."""
    (tmp_path / "x.yaml").write_text(SLOW)
    verb, *options = question
    status, told = ended(tmp_path, verb, "gpt2-medium", "--on", "x.yaml", *options)
    assert status == 2
    assert what in told
    assert "as no machine does" in told
    assert "FITS" not in told


def test_sizes_that_no_model_has_are_told(tmp_path):
    sizes = "--num-experts 10 --moe-router-num-groups 8 --moe-router-group-topk 4"
    (tmp_path / "a.sh").write_text(f"{JOB.strip()} {sizes}\n")
    status, told = ended(tmp_path, "read", "a.sh")
    assert (status, "num_groups: 8 do not divide 10" in told) == (2, True)


LONG = "n" * 10_000
"""A name that no file should have; two hosts, a chip and a table of flows have it here."""


@pytest.mark.parametrize(
    "words",
    [
        "show chip hot.yaml", "show system x.yaml",
        "estimate gpt2-medium --on x.yaml --seq 1k --global-batch 64 --detail",
        "partition --layers layers.yaml --on 2xGroq-LPU --detail", "simulate flows flows.json",
    ],
)  # fmt: skip
def test_a_name_of_ten_thousand_letters_does_not_flood_the_screen(tmp_path, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    hot = (FOLDER / "hot.yaml").read_text().replace("idle_power", "# idle_power")
    (tmp_path / "hot.yaml").write_text(re.sub("name: .*", f"name: {LONG}", hot))
    system = SLOW.replace("1e-30 B/s", "1 TB/s").replace("name: X", f"name: {LONG}")
    (tmp_path / "x.yaml").write_text(system.replace("name: l,", f"name: {LONG},"))
    (tmp_path / "layers.yaml").write_text(
        f"name: {LONG}\nlayers:\n  - {{name: {LONG}, size: 1 MB, time: 1 ms}}\n"
    )
    link = {"id": LONG, "bw_Bps": 1e9, "lat_s": 0}
    flow = {"id": LONG, "bytes": 1, "route": [LONG]}
    flows = {"name": LONG, "links": [link], "flows": [flow]}
    (tmp_path / "flows.json").write_text(json.dumps(flows))
    status, told = ended(tmp_path, *words.split())
    assert status == 0, told
    assert max(map(len, told.splitlines())) <= 250
    assert len(told.splitlines()) <= 100  # all sections of an estimate at 80 columns
    assert LONG in ended(tmp_path, *words.replace("--detail", "").split(), "--json")[1]


WEIGHTS = {"num_bits": 8, "type": "int", "strategy": "channel"}
PATTERNS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"0": {"targets": ["Linear"], "weights": WEIGHTS}},
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False,
}  # fmt: skip


def configuration(ignored):
    """Return a published form of a model whose list of wide modules is that."""
    return json.dumps(LLAMA | {"quantization_config": PATTERNS | {"ignore": ignored}})


def packed(member):
    """Return an archive whose one member is zeros behind gzip, as large as it is told."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/models/model.json", gzip.compress(b"[" * member, mtime=0))
    return made.getvalue()


@pytest.mark.parametrize(
    ("words", "name", "content"),
    [
        # Time that grows with the square of a text, or faster, in what looks for a pattern.
        ("read", "a.toml", "\n" * 60_000 + "a = 1\n"),
        ("read", "a.toml", " " * 60_000 + "a = 1\n"),
        ("read", "a.toml", '"a".' * 20_000 + "a = 1\n"),
        ("show chip", "a.yaml", f"name: {'1' * 60_000}x\n"),
        ("show chip", "a.yaml", f"name: 8{'-' * 60_000}1\n"),
        ("show model", "a.json", configuration([r"re:(\w+\.?)+!"])),
        ("show model", "a.json", configuration([f"re:{'.*' * 12}!"])),
        ("show model", "a.json", configuration(["*" * 30 + "x"])),
        ("show model", "a.json", configuration(["q_proj"] * 60_000)),
        # Nesting, keys, lines, aliases, archives, loops.
        ("read", "a.yaml", "[" * 20_000), ("show graph", "a.yaml", "a: " * 20_000),
        ("read", "a.json", '{"a":' * 20_000), ("show model", "a.json", "[" * 60_000),
        ("read", "a.yaml", "".join(f"k{i}: {i}\n" for i in range(60_000))),
        ("show graph", "a.yaml", "".join(f"k{i}: {i}\n" for i in range(60_000))),
        ("sweep", "a.yaml", "a: &a [1]\n" + "".join(
            f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 10)}]\n" for i in range(9))),
        ("read", "a.sh", "echo " + "a" * 4_000_000), ("read", "a.sh", "$(" * 20_000),
        ("read", "a.sh", "for a in 1 2 3 4 5 6 7 8 9; do\n" * 9 + "echo\n" + "done\n" * 9),
        ("read", "a.py", "(" * 20_000), ("read", "a.py", "x = " + "-" * 60_000 + "1"),
        ("read", "a.py", "".join(f"{' ' * i}for a{i} in range(99):\n" for i in range(60))
         + " " * 60 + "x = 1\n"),
        ("read", "a.pt2", packed(200_000_000)), ("read", "a.pt2", packed(10)),
    ],
    ids=range(24),
)  # fmt: skip
def test_no_reader_takes_more_than_its_budget(tmp_path, words, name, content):
    """Two seconds of CPU time and 500 MB on a fast machine; without a budget it takes minutes."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    limits = {"most_bytes": 1_500_000_000, "most_cpu_s": 12}
    status, told = ended(tmp_path, *words.split(), name, **limits)
    assert status == 2, told[:500]
    assert len(told) < 10_000


ROW = {
    "id": "m", "group": "mine", "framework": "megatron", "model": "gpt2-medium",
    "system": "8xH100", "sequence_length": 1024, "global_batch_size": 16, "precision": "bf16",
    "strategy": {"tp": 2, "pp": 2, "zero_stage": 1}, "measured": {"tokens_per_s_per_chip": 8500.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"measured": {"tokens_per_s": 0}}, "expected more than 1e-12, found 0"),
        ({"strategy": {"recompute": "some"}}, "expected one of none, selective, full"),
        ({"strategy": {"tp": 2.5}}, "expected a whole number, found 2.5"),
        ({"system": {"level": 3}}, "unknown field"),
    ],
)
def test_messages_of_rows_are_in_plain_words(tmp_path, changes, says):
    (tmp_path / "rows.json").write_text(json.dumps([ROW | changes]))
    status, message = ended(tmp_path, "validate", "--measurements", "rows.json")
    assert (status, says in message) == (2, True), message
    assert "Input should" not in message


def test_names_of_rows_cannot_steer_a_terminal_or_a_page(tmp_path):
    name = "<script>a=1</script>\u2028\u202e\x1b[2J"
    (tmp_path / "rows.json").write_text(json.dumps([ROW | {"id": name, "group": name}]))
    for words in (["validate", "--detail", "--measurements"], ["calibrate"]):
        status, told = ended(tmp_path, *words, "rows.json")
        assert status == 0, told
        assert not {"\u2028", "\u202e", "\x1b"} & set(told)


@pytest.mark.parametrize(
    ("verb", "content", "says"),
    [
        ("explain", [], "is not an answer of this program: found a list"),
        ("explain", {}, "is not an answer of this program: found no field `format`"),
        ("simulate", {"format": None}, "format: found None, this version reads"),
        ("read", "a: !!map [1]\n", "expected a mapping node, but found sequence"),
    ],
)
def test_messages_name_what_is_wrong_and_no_part_of_python(tmp_path, verb, content, says):
    name = "a.yaml" if isinstance(content, str) else "a.json"
    (tmp_path / name).write_text(content if name == "a.yaml" else json.dumps(content))
    status, told = ended(tmp_path, verb, name)
    assert (status, says in told) == (2, True), told


def test_a_sweep_resumes_with_no_answer_of_another_system(tmp_path):
    """The file of a system says something else the second time: its point is asked again."""
    torus = (FOLDER / "torus.yaml").read_text()
    (tmp_path / "s.yaml").write_text(
        "name: s\nask: plan\nfixed: {seq: 1k, model: gpt2-124m, global_batch: 4}\n"
        "vary: {on: [own.yaml]}\n"
    )
    counts = []
    for text in (torus, torus, torus.replace("num_devices: 4", "num_devices: 2")):
        (tmp_path / "own.yaml").write_text(text)
        status, told = ended(tmp_path, "sweep", "s.yaml", "--out", "s.db", "--force")
        assert status == 0, told
        counts.append(int(re.search(r"(\d+) of them new", told)[1]))
    assert counts == [1, 0, 1]


def with_external_shape(path, place):
    """Write a network whose constant is told to stand in another file."""
    onnx = pytest.importorskip("onnx")
    held = onnx.TensorProto(
        name="shape", data_type=onnx.TensorProto.INT64, dims=[2],
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", place), ("length", "16")):
        held.external_data.add(key=key, value=value)
    ends = [onnx.helper.make_tensor_value_info(n, 1, [2, 2]) for n in ("x", "y")]
    node = onnx.helper.make_node("Reshape", ["x", "shape"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], initializer=[held])
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "X=$(touch PWNED; cat ../untold)\nY=`touch PWNED`\neval 'touch PWNED'\n"
         "source ../untold\nread Z < ../untold\nW=$(<../untold)\necho a > PWNED\n" + JOB),
        ("b.sh", "deepspeed train.py --deepspeed ../untold --model_name_or_path ../untold\n"),
        ("c.sh", JOB.replace("--seq-length 8192", "--seq-length $SECRET")),
        ("a.yaml", "model_name_or_path: ../untold\ndeepspeed: ../untold\n"
         "per_device_train_batch_size: 1\n"),
        ("b.yaml", 'a: !!python/object/apply:os.system ["touch PWNED"]\nb: !include ../untold\n'),
        ("a.py", "import os\nos.system('touch PWNED')\nopen('../untold')\n"
         "exec(\"open('PWNED', 'w')\")\n__import__('subprocess').run(['touch', 'PWNED'])\n"
         + RECIPE),
        ("a.onnx", "../untold"), ("b.onnx", "/etc/passwd"),
    ],
)  # fmt: skip
def test_what_is_read_runs_nothing_and_opens_no_file_that_is_not_named(
    tmp_path, monkeypatch, name, text
):
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "untold").write_text("TOPSECRET: 1\n")
    if name.endswith(".onnx"):
        with_external_shape(folder / name, text)
    else:
        (folder / name).write_text(text)
    monkeypatch.setenv("SECRET", "4096")
    told, touched = watched(folder, "read", name, "--detail")
    assert touched == "[]", told  # the file itself by its relative name
    assert [path.name for path in folder.iterdir()] == [name]
    assert "TOPSECRET" not in told
    assert "seq 4,096" not in told  # of the environment of who reads it


def test_the_watch_sees_what_is_opened(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(JOB)
    assert watched(tmp_path, "read", str(path))[1] == f"['{path}']"


@pytest.mark.parametrize("words", ["calibrate k.csv", "validate --measurements k.csv"])
def test_a_table_of_kernels_is_no_broken_json(tmp_path, words):
    """Rows of steps are JSON; a table is read by what reads tables."""
    (tmp_path / "k.csv").write_text("chip,latency_us\nh100_sxm,5\n")
    status, told = ended(tmp_path, *words.split())
    assert (status, "is a table, not rows of steps (--kernels reads" in told) == (2, True)


def test_faults_of_an_answer_are_in_our_words(tmp_path):
    """It was "Value error, a quantity ...": the prefix is that of a library."""
    asked = "plan gpt2-medium --on 1xH100 --seq 1k --global-batch 8 --out p.json"
    assert ended(tmp_path, *asked.split())[0] == 0
    plan = json.loads((tmp_path / "p.json").read_text())
    plan["system"]["chip"]["memories"][0]["bandwidth_bytes_per_s"] = 10**400
    (tmp_path / "p.json").write_text(json.dumps(plan))
    status, told = ended(tmp_path, "explain", "p.json")
    place = "p.json: system.chip.memories.0.bandwidth_bytes_per_s: a quantity of"
    assert (status, place in told) == (2, True)
