"""Jobs whose price once left out bytes or seconds that the framework does not save."""

from pathlib import Path

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.cost.parts import MemoryPart
from meshwright.sharding.strategy import Offload

FOLDER = Path(__file__).parent / "price"
GIB = 2.0**30


def priced(name, on, lines="", **options):
    """Return the price of a file with some lines behind it, on a system."""
    path = FOLDER / name
    if lines:
        path = options.pop("folder") / name
        path.write_text((FOLDER / name).read_text("utf-8") + lines, "utf-8")
    return mw.estimate(from_=str(path), on=on, **options).best


def memory_gib(best, part):
    return best.estimate.memory_parts_bytes[part] / GIB


# liger-kernel 0.6, ops/fused_linear_cross_entropy.py: 151,936 words over a hidden size of 1,536 are
# 99 parts; axolotl 0.13, integrations/liger/args.py: the plugin alone changes nothing.
LOSSES = {
    "the plugin alone": ("plugins:\n  - axolotl.integrations.liger.LigerPlugin\n", "plain"),
    "liger": ("liger_fused_linear_cross_entropy: true\n", "linear"),
    "liger without the product": ("liger_cross_entropy: true\n", "compiled"),
    "cut": ("cut_cross_entropy: true\n", "cut"),
}


@pytest.mark.parametrize("case", LOSSES)
def test_axolotl_prices_the_loss_that_it_runs(case, tmp_path):
    lines, kernel = LOSSES[case]
    plan = mw.estimate(from_=str(FOLDER / "axolotl.yaml"), on="1xH200")
    path = tmp_path / "job.yaml"
    path.write_text((FOLDER / "axolotl.yaml").read_text("utf-8") + lines, "utf-8")
    fused = mw.estimate(from_=str(path), on="1xH200")
    assert fused.workload.software.loss == kernel
    # 16,384 tokens x 151,936 words: logits and gradient of 2 bytes, FP32 copies of 2 x 4.
    logits_gib = 16384 * 151936 / GIB
    plain, less = (memory_gib(p.best, MemoryPart.LOGITS) for p in (plan, fused))
    saved = {"plain": 0.0, "compiled": 1.0 * 4 * logits_gib}.get(kernel, plain - less)
    assert plain - less == pytest.approx(saved, rel=0.01)
    if kernel in ("linear", "cut"):
        assert plain - less > 0.8 * 12 * logits_gib
    again = fused.best.estimate.time_parts_s["recompute_s"]
    once = plan.best.estimate.time_parts_s["recompute_s"]
    assert (again > once) is (kernel == "cut")


@pytest.mark.parametrize(
    ("option", "kernel"),
    [("", "plain"), ("--use_liger_kernel", "linear"), ("--use_liger_kernel false", "plain")],
)
def test_a_trainer_prices_its_liger_kernels(option, kernel):
    plan = mw.estimate(from_=str(FOLDER / "trainer.sh"), on="1xH200", set=[f"LOSS={option}"])
    assert plan.workload.software.loss == kernel


def test_torchtitan_compiles_the_loss_alone(tmp_path):
    """Of the FP32 copies of 4 x 4096 x 102,400 logits 1 is left of 2."""
    plain = priced("torchtitan.toml", "64xH100")
    lines = '[compile]\nenable = true\ncomponents = ["loss"]\n'
    less = priced("torchtitan.toml", "64xH100", lines, folder=tmp_path)
    gone = memory_gib(plain, MemoryPart.LOGITS) - memory_gib(less, MemoryPart.LOGITS)
    assert gone == pytest.approx(4 * 4 * 4096 * 102400 / GIB, rel=0.01)


def test_torchtitan_keeps_no_product_of_experts():
    """Every second product is kept, grouped ones are not; 27 layers of 4 x 4096 tokens, by hand.

    Each layer keeps its input (2,048 words a token), queries (3,072), the second product of keys
    and values (4,096), and the output of the core (2,048) with one FP32 sum for each of 16 heads.
    The experts that all tokens share keep the gate (2,816) and the last product (2,048), the dense
    layer 10,944 and 2,048; the last norm keeps 2,048 in FP32.
    PyTorch ``_functorch/partitioners.py``, ``compute_intensive_ops``: there is no ``_grouped_mm``.
    """
    best = priced("torchtitan.toml", "64xH100")
    layers = 27 * (2 * (2048 + 3072 + 4096 + 2048) + 4 * 16)
    networks = 2 * (26 * (2816 + 2048) + 10944 + 2048)
    by_hand = 4 * 4096 * (layers + networks + 4 * 2048)
    assert memory_gib(best, MemoryPart.ACTIVATIONS) == pytest.approx(by_hand / GIB, rel=1e-3)


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ("num_pipeline_microbatches=16", 2),
        ("", 16),
        ("pipeline_delay_activation_forwarding=true", 8),
    ],
)
def test_maxtext_cuts_the_batch_of_a_pipeline(parts, size):
    """MaxText 0.2.5, pyconfig.py: as many micro-batches as stages unless told otherwise."""
    name = str(FOLDER / "maxtext_pipeline.sh")
    best = mw.estimate(from_=name, on="8xH100", set=[f"PARTS={parts}"]).best
    assert best.strategy.micro_batch_size == size
    assert best.estimate.num_micro_batches == 32 // size


def test_maxtext_reads_micro_batches_without_a_system():
    """Their number is no unread option where only the devices are not known yet."""
    name = str(FOLDER / "maxtext_pipeline.sh")
    found = mw.read(name, set=["PARTS=num_pipeline_microbatches=16"])
    assert any(str(fault).startswith("--on: is needed") for fault in found.missing)


@pytest.mark.parametrize(("number", "fix"), [(15, "(16)"), (12, "(8)")])
def test_maxtext_refuses_a_batch_that_a_pipeline_cannot_cut(number, fix):
    name = str(FOLDER / "maxtext_pipeline.sh")
    with pytest.raises(SpecError, match="num_pipeline_microbatches") as caught:
        mw.estimate(from_=name, on="8xH100", set=[f"PARTS=num_pipeline_microbatches={number}"])
    assert fix in str(caught.value)


def test_gathered_weights_that_are_kept_lie_on_the_device():
    """141 GB of bf16 weights of 70.6e9 parameters, whatever lies on the host: 131.4 GiB."""
    plan = mw.estimate(
        "llama3-70b", on="16xH100", seq=8192, global_batch=64, framework="accelerate", dp=16,
        mbs=2, zero=3, reshard="off", offload="state", recompute="full",
    )  # fmt: skip
    assert memory_gib(plan.best, MemoryPart.GATHERED) == pytest.approx(131.4, rel=0.001)


def test_what_leads_on_a_small_cluster_keeps_no_weights_that_do_not_fit():
    plan = mw.plan("llama3-70b", on="16xH100", seq=8192, global_batch=64, framework="accelerate")
    assert plan.best.plan_options.offload is Offload.STATE
    assert plan.best.plan_options.reshard_after_forward
    # 28 bytes of 4.41e9 parameters a device over 76.8 GB/s of host memory.
    assert plan.best.estimate.time_parts_s["offload_s"] > 1.6
