"""Traces of the PyTorch profiler: a step of a device by hand, one of a CPU, and no trace."""

import gzip
import json
import os

import pytest
from report_pages import charts_of, check_page

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.frameworks import profile
from meshwright.frameworks.profile import Work, kind_of, read_profile

QUESTION = {"on": "8xH100", "seq": "1k", "global_batch": 64, "tp": 2}


def event(category, name, begin, end, tid=7, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": begin,
            "dur": end - begin, "args": args}  # fmt: skip


def step_of_a_device(number, at):
    """100 us: a gap of 5 before the update, one of 2 after a copy; half of a sum is hidden."""
    adam = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
    kernels = [
        ("kernel", "void flash_fwd_kernel<cutlass::half_t>", 0, 20),
        ("kernel", "nvjet_hsh_128x256_64x4_1x2_h_bz_TNT", 20, 50),
        ("kernel", "void at::native::vectorized_elementwise_kernel<4, silu>", 50, 60),
        ("kernel", adam, 85, 95),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 95, 98),
    ]
    sums = event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", at + 40,
                 at + 80, tid=20)  # fmt: skip
    return [
        event("user_annotation", f"ProfilerStep#{number}", at - 10, at + 90, tid=1),
        event("gpu_user_annotation", f"ProfilerStep#{number}", at, at + 100),
        event("cuda_runtime", "cudaLaunchKernel", at - 9, at + 80, tid=1),
        event("cpu_op", "aten::mm", at - 9, at + 80, tid=1),
        *(event(category, name, at + b, at + e) for category, name, b, e in kernels), sums,
    ]  # fmt: skip


DEVICE = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    event("kernel", "nvjet_warm_up", 0, 900),
    *step_of_a_device(3, 1000), *step_of_a_device(4, 1100),
    {"ph": "i", "name": "Iteration Start", "ts": 5},
]  # fmt: skip


def written(path, events, **fields):
    data = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], **fields, "traceEvents": events}
    path.write_text(json.dumps(data, indent=1))
    return path


@pytest.fixture
def device_trace(tmp_path):
    return written(tmp_path / "trace.json", DEVICE, traceName="a.json")


def microseconds(parts):
    return {kind: pytest.approx(value * 1e6) for kind, value in parts.items()}


def test_a_step_of_a_device_by_hand(device_trace):
    found = read_profile(device_trace)
    assert found.num_steps == 2
    assert found.on_device
    assert found.step_s == pytest.approx(100e-6)
    assert microseconds(found.parts_s) == {
        Work.ATTENTION: 20, Work.PRODUCTS: 30, Work.OTHER: 10, Work.ALL_REDUCE: 20,
        Work.OPTIMIZER: 10, Work.COPIES: 3,
    }  # fmt: skip
    assert microseconds(found.hidden_s) == {Work.ALL_REDUCE: 20}
    assert found.idle_s * 1e6 == pytest.approx(7)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_how_much_is_read_at_once_makes_no_difference(device_trace, monkeypatch, size):
    whole = read_profile(device_trace)
    monkeypatch.setattr(profile, "CHUNK", size)
    assert read_profile(device_trace) == whole


def test_packed_or_an_array_alone_is_the_same(device_trace, tmp_path):
    whole, packed, array = read_profile(device_trace), tmp_path / "t.json.gz", tmp_path / "a.json"
    packed.write_bytes(gzip.compress(device_trace.read_bytes()))
    array.write_text(" " + json.dumps(DEVICE))
    assert read_profile(packed) == read_profile(array) == whole


def test_operators_of_a_cpu_count_once(tmp_path):
    """A product inside of its wrapper is a product; what only the wrapper takes is other work."""
    events = [
        event("cpu_op", "aten::linear", 0, 50), event("cpu_op", "aten::addmm", 10, 40),
        event("cpu_op", "aten::scaled_dot_product_attention", 60, 90),
        event("cpu_op", "aten::bmm", 65, 75),
        event("user_annotation", "gloo:all_reduce", 80, 100, tid=9),
        event("user_annotation", "DistributedDataParallel.forward", 0, 100),
    ]  # fmt: skip
    found = read_profile(written(tmp_path / "cpu.json", events))
    assert found.num_steps == 0
    assert not found.on_device
    assert microseconds(found.parts_s) == {
        Work.PRODUCTS: 30, Work.OTHER: 20, Work.ATTENTION: 30, Work.ALL_REDUCE: 10,
    }  # fmt: skip
    assert microseconds(found.hidden_s) == {Work.ALL_REDUCE: 10}
    assert found.idle_s * 1e6 == pytest.approx(10)


@pytest.mark.parametrize(
    ("name", "args", "kind"),
    [
        ("ncclDevKernel_Generic(args)", {"Collective name": "_allgather_base"}, Work.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", {}, Work.REDUCE_SCATTER),
        ("ncclDevKernel_SendRecv(args)", {"Collective name": "all_to_allv"}, Work.ALL_TO_ALL),
        ("ncclDevKernel_SendRecv(args)", None, Work.SEND),
        ("ncclDevKernel_Generic(args)", {"Collective name": 7}, Work.COLLECTIVE),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", {}, Work.PRODUCTS),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", {}, Work.PRODUCTS),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", {}, Work.ATTENTION),
        ("triton_red_fused_add_mul_rsqrt_0", {}, Work.OTHER),
    ],
)
def test_kernels_by_their_names(name, args, kind):
    assert kind_of(name, args, on_device=True) is kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "traceEvents: is missing"),
        ("plain text", "traceEvents: is missing"),
        ('{"traceEvents": []}', "hold no kernel and no operator"),
        ('{"traceEvents": [{"ph": "X"', r"traceEvents\[0\]: the file ends within it"),
        ('{"traceEvents": [{"ph": "X"}, 7]}', r"traceEvents\[1\]: found int, expected an object"),
        ('[{"ph": "X", "cat": "kernel", "name": "a", "dur": 3}]', r"\[0\].ts: is missing"),
        ('[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": "3"}]', r"dur: found '3'"),
        ('[{"ph": "X", "cat": "kernel", "name": "a", "ts": NaN, "dur": 3}]', r"ts: found nan"),
        ('[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": -1}]', r"dur: found -1"),
        ('[{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 0}]', "no kernel and no op"),
        ("[" * 100_000, "the file ends within it"),
    ],
)
def test_what_is_no_trace_is_told(tmp_path, text, says):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=says) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)
    assert len(caught.value.faults) == 1


def test_bytes_that_are_no_trace_are_told(tmp_path, device_trace, monkeypatch):
    cut, binary, pipe = (tmp_path / name for name in ("cut.json.gz", "b.json", "pipe.json"))
    cut.write_bytes(gzip.compress(device_trace.read_bytes())[:200])
    binary.write_bytes(b'{"traceEvents": [\xff\xfe')
    os.mkfifo(pipe)
    for path, says in (
        (cut, "ended before"),
        (binary, "not UTF-8"),
        (pipe, "a FIFO"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(SpecError, match=says):
            read_profile(path)
    monkeypatch.setattr(profile, "CHUNK", 100)
    monkeypatch.setattr(profile, "MOST_BYTES", 1000)
    with pytest.raises(SpecError, match="more than 0 MiB"):
        read_profile(device_trace)


def test_both_sides_sum_to_their_step(device_trace):
    found = mw.explain("gpt2-355m", **QUESTION, trace=device_trace)
    plan = mw.estimate("gpt2-355m", **QUESTION)
    parts = found.parts
    assert sum(part.measured_s for part in parts) == pytest.approx(found.step_s)
    assert sum(part.predicted_s for part in parts) == pytest.approx(plan.best.estimate.step_time_s)
    check_page(found.page())
    sides = charts_of(found.page())["Both steps by part"].table
    assert [row[0] for row in sides.rows] == ["measured", "predicted"]
    assert sides.head[1:] == [f"{part.name}>" for part in parts]


def test_explain_shows_a_trace_beside_the_prediction(device_trace, capsys):
    words = ["explain", "gpt2-355m", "--on", "8xH100", "--seq", "1k", "--global-batch", "64"]
    assert main([*words, "--trace", str(device_trace)]) == 0
    shown = capsys.readouterr().out
    assert "measured  100 us a step (2 steps, kernels of the device)" in shown
    assert "hidden    all reduce 20 us" in shown
    assert main([*words, "--trace", str(device_trace), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["step_s"] == pytest.approx(1e-4)
    assert main([*words, "--trace", str(device_trace), "--measured", "1s"]) == 2
    assert "--measured" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trace_of_pytorch_itself(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tools, path = torch.profiler, tmp_path / "real.json.gz"
    with tools.profile(
        activities=[tools.ProfilerActivity.CPU],
        schedule=tools.schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as run:  # fmt: skip
        for _ in range(3):
            model(torch.randn(2, 32, 64)).sum().backward()
            optimizer.step()
            run.step()
    found = read_profile(path)
    assert found.num_steps == 2
    assert {Work.PRODUCTS, Work.ATTENTION, Work.OPTIMIZER, Work.OTHER} <= found.parts_s.keys()
    assert sum(found.parts_s.values()) + found.idle_s == pytest.approx(found.step_s)
    assert not found.hidden_s
