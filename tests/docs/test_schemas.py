"""Published schemas: what commands print keeps to them, and they are those of this version."""

import json
import shlex
from pathlib import Path

import jsonschema
import pytest
from sampled import one_in

from meshwright.base.registry import load_entry_points
from meshwright.catalog.answer_file import FORMAT, plain_data
from meshwright.catalog.calibration import Constant
from meshwright.cli.main import main
from meshwright.cli.show import SCHEMAS
from meshwright.measure.run import MeasuredMachine
from meshwright.spec.measured import Machine, Measured, Timing
from meshwright.view.schema import schema_of

pytestmark = pytest.mark.usefixtures("kept_answers")

NAMES = (*SCHEMAS, *load_entry_points("schemas"))
FOLDER = Path(__file__).parents[2] / "docs" / "schemas"
ON_GPUS = "--on 8xH100 --seq 1024 --global-batch 64"
TRAIN = f"gpt2-medium {ON_GPUS}"
ON_WAFER = "gpt3-6.7b --on wafer-4x8 --seq 2048 --global-batch 32"
SERVE = "llama3-8b --on 8xH100"
ROW = {
    "id": "m", "group": "mine", "framework": "megatron",
    "model": "gpt2-medium", "system": "8xH100", "sequence_length": 1024,
    "strategy": {"tp": 2, "pp": 2, "zero_stage": 1, "micro_batch_size": 1},
    "global_batch_size": 16, "precision": "bf16",
    "measured": {"tokens_per_s_per_chip": 8500.0, "memory_bytes": 3e10},
}  # fmt: skip
FILES = {
    "sweep.yaml": "name: batches\nask: plan\nfixed: {model: gpt2-medium, seq: 512, on: 8xA100}\n"
    "vary:\n  global_batch: [8, 16]\n",
    "flows.json": json.dumps({
        "name": "one",
        "links": [{"id": "a", "bw_Bps": 1e9, "lat_s": 0.0, "src": "x", "dst": "y"},
                  {"id": "b", "bw_Bps": 1e9, "lat_s": 0.0, "src": "y", "dst": "x"}],
        "flows": [{"id": 0, "bytes": 8.0, "src": "x", "dst": "y", "route": ["a"]},
                  {"id": 1, "bytes": 8.0, "src": "y", "dst": "x", "route": ["b"], "after": [0],
                   "start_s": 1.0}],
    }),
    "rows.json": json.dumps([ROW]),
    "odd_rows.json": json.dumps([ROW, {"id": 1, "batch": -1}]),
    "train.sh": "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 4 --global-batch-size 64 --train-iters 100 --log-throughput\n",
    "trace.json": json.dumps({"traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 100,
         "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "ampere_bf16_gemm", "ts": 5, "dur": 60, "pid": 0,
         "tid": 7, "args": {"device": 0, "stream": 7}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 100, "dur": 100,
         "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "ampere_bf16_gemm", "ts": 105, "dur": 60, "pid": 0,
         "tid": 7, "args": {"device": 0, "stream": 7}},
    ]}),
    "gemm.csv": "chip,dtype,m,n,k,latency_us\n"
    + "".join(f"H100 SXM,bfloat16,{2**n},4096,4096,{3 + 2**n / 40}\n" for n in range(3, 15)),
}  # fmt: skip
"""What some of the commands read."""
PLANS = {
    "plan.json": f"estimate {TRAIN} --pp 2",
    "tp.json": f"estimate {TRAIN} --tp 2 --dp 1",
    "wafer.json": f"estimate {ON_WAFER} --dp 2 --tatp 16",
    "place.json": "place wafer.json",
}
"""Commands that write what others read, in order."""
PRINTED = [
    ("plan", f"plan {TRAIN}"),
    ("plan", f"estimate {TRAIN} --tp 2 --offload optimizer"),
    ("plan", f"plan {ON_WAFER} --with simulated=0"),
    ("front", f"plan {TRAIN} --pareto"),
    ("replan", "plan --from plan.json --without 1"),
    ("deadline", f"plan {TRAIN} --within 1h --tokens 1M"),
    ("serving-plan", f"serve {SERVE} --batch 64 --context 4k"),
    ("serving-plan", f"serve {SERVE} --batch 8 --prompt 4k"),
    ("disaggregated-plan", f"serve {SERVE} --batch 8 --prompt 4k --answer 64 "
                           "--disaggregated --max-ttft 1s"),
    ("traffic-plan", f"serve {SERVE} --rate 5 --prompt 1k --answer 64 --with turns=3"),
    ("loop-plan", "loop gpt2-medium --on 8xH100 --prompts 64 --prompt 512 --answer 64 --mbs 4"),
    ("graph-plans", "map gpt3-175b-layer --on 8xH100"),
    ("linpack", "map hpl-40000x512 --on 8xH100 --process-grid any"),
    ("fit", f"fit {TRAIN} --tp 2"),
    ("fit", "fit llama3-70b --on 8xH100 --seq 8k --global-batch 64"),
    ("check", f"check {TRAIN} --tp 2"),
    ("check", f"check {TRAIN} --tp 3"),
    ("comparison", f"compare {TRAIN}"),
    ("explanation", "explain plan.json"),
    ("diagnosis", "explain plan.json --measured 2s"),
    ("profile", "explain plan.json --trace trace.json"),
    ("timeline", "simulate plan.json"),
    ("simulation", "simulate wafer.json"),
    ("placement", "place wafer.json"),
    ("placements", "place wafer.json place.json"),
    ("flows", "simulate flows flows.json"),
    ("routes", "route flows.json"),
    ("partition-plan", "partition llama3-8b --on 4xWSE-3 --seq 4096"),
    ("fusion", "fuse gpt3-175b-layer --on SN10"),
    ("job", "read train.sh"),
    ("graph", "show graph dlrm-a"),
    ("sweep", "sweep sweep.yaml --least step_time_s"),
    ("validation", "validate --measurements odd_rows.json"),
    ("kernel-validation", "validate --kernels --measurements gemm.csv"),
    ("kernel-validation", "calibrate gemm.csv --kernels"),
    ("calibration", "calibrate rows.json"),
    ("run", "run tp.json --steps 1"),
    ("collectives", "show collectives --on 8xH100 --group 8 --size 1 GiB"),
    ("topologies", "show topologies --devices 8"),
    ("walk", "show walk tatp --group 4"),
    ("walk", "show walk tp-sp"),
    ("failure", "plan no-such-model --on 8xH100 --seq 1k --global-batch 8"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that commands read."""
    made = tmp_path_factory.mktemp("asked")
    for name, text in FILES.items():
        (made / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name, command in PLANS.items():
            assert main([*shlex.split(command), "--out", name]) == 0
    return made


def closed(schema):
    """Return a schema that refuses fields of which it does not tell."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(entry) for name, entry in schema.items()}
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def schema(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_published_schemas_are_those_of_this_version(name, capsys):
    assert main(["show", "schema", name]) == 0
    text = capsys.readouterr().out
    assert (FOLDER / f"{name}.json").read_text("utf-8") == text
    found = json.loads(text)
    assert found["$id"] == f"urn:meshwright:{name}:{FORMAT}"
    jsonschema.Draft202012Validator.check_schema(found)


def test_every_schema_is_published_and_tried():
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)
    assert {name for name, _ in PRINTED} | {"measurement"} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "command"),
    one_in(4, [pytest.param(*entry, id=" ".join(entry)[:40]) for entry in PRINTED]),
)
def test_answers_keep_to_their_schema(name, command, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main([*shlex.split(command), "--json"]) in (0, 2, 3)
    answer = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(closed(schema(name)))
    assert [error.message[:300] for error in validator.iter_errors(answer)] == []
    for field in schema(name)["properties"]:
        if field in answer:
            assert not validator.is_valid(answer | {field: object()})


def test_what_is_measured_keeps_to_its_schema():
    row = Timing(
        kernel="matmul", shape=(8, 8, 8), dtype="bf16", median_s=1e-6, p25_s=1e-6, p75_s=1e-6,
        num_samples=9,
    )  # fmt: skip
    about = Machine(
        device="NVIDIA H100 80GB HBM3", kind="cuda", num_devices=8, devices_per_host=8,
        memory_bytes=8e10, host_cores=96, torch="2.9",
    )  # fmt: skip
    constants = (Constant("gemm_efficiency", 0.5, 0.4, 0.6, "one row"),)
    rows = Measured(machine=about, taken_s=1.0, rows=(row,))
    machine = MeasuredMachine(rows, "H100", "8xH100", constants, ("a.yaml",))
    answer = plain_data(machine, with_defaults=True)
    validator = jsonschema.Draft202012Validator(closed(schema("measurement")))
    assert [error.message[:300] for error in validator.iter_errors(answer)] == []


def test_a_schema_tells_what_stands_under_a_field():
    found = schema("fit")["properties"]["memory_bytes"]["description"]
    assert found == "Memory of the fullest device, margin included [bytes]."
    assert schema_of(Constant, "constant")["properties"]["low"]["type"] == "number"
