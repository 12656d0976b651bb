"""Kernels of a graph as a row: what is alive, what a cut sends, against walks over the row."""

import json

import numpy as np
import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.catalog.models import load_model
from meshwright.cli.main import main
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.search import calibrated_system
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, Operand, Unit, Weight
from meshwright.graph.kernels.models import model_graphs
from meshwright.spec.calibration import FREE_SUMS, SramConstants
from meshwright.sram.kernels import Lifetime, alive_bytes, kernel_row, lifetimes


def graph(kernels, sizes, outputs, repeats=1):
    """Return a graph of single-letter tensors that reads ``x`` from outside."""
    return DataflowGraph(
        name="g", kernels=tuple(kernels), sizes=sizes, inputs={"x": ("n",)}, outputs=outputs,
        tiled="n", word_bytes=1.0, repeats=repeats,
    )  # fmt: skip


def chain(*sizes, repeats=1):
    """Return kernels in a row; each reads all of the one before, and writes a dim of its own."""
    dims = {"n": sizes[0], **{f"d{i}": size for i, size in enumerate(sizes[1:])}}
    kernels, before, read = [], "x", "n"
    for number in range(len(sizes) - 1):
        own = f"d{number}"
        weight = Weight(f"w{number}", (read, own))
        kernels.append(
            Kernel(f"k{number}", Unit.MATRIX, (own,), (Operand(before, (read,)),), (weight,))
        )
        before, read = f"k{number}", own
    return graph(kernels, dims, (before,), repeats)


def test_a_chain_by_hand():
    """8 bytes in, then 4, 2, 1: what runs has its input and output; a cut sends one tensor."""
    row = kernel_row(chain(8, 4, 2, 1))
    assert row.names == ("k0", "k1", "k2")
    assert row.transient_bytes["activations"].tolist() == [12.0, 6.0, 3.0]
    assert row.output_bytes.tolist() == [4.0, 2.0, 0.0]
    assert row.resident_bytes["weights"].tolist() == [32.0, 8.0, 2.0]
    assert row.transient_bytes["buffers"].tolist() == [16.0, 8.0, 4.0]  # sums in FP32
    assert row.time_parts_s == {}


def test_repetitions_hand_over_their_outputs():
    row = kernel_row(chain(8, 4, 8, repeats=2))
    assert row.names == ("0.k0", "0.k1", "1.k0", "1.k1")
    assert row.transient_bytes["activations"].tolist() == [12.0, 12.0, 12.0, 12.0]
    assert row.output_bytes.tolist() == [4.0, 8.0, 4.0, 0.0]


def test_a_tensor_that_skips_kernels_is_held_and_sent_through_them():
    a = Kernel("a", Unit.VECTOR, ("n",), (Operand("x", ("n",)),))
    b = Kernel("b", Unit.VECTOR, ("n",), (Operand("a", ("n",)),))
    c = Kernel("c", Unit.VECTOR, ("n",), (Operand("b", ("n",)), Operand("a", ("n",))))
    row = kernel_row(graph([a, b, c], {"n": 5}, ("c",)))
    assert row.transient_bytes["activations"].tolist() == [10.0, 10.0, 15.0]
    assert row.output_bytes.tolist() == [5.0, 10.0, 0.0]


def test_what_overwrites_its_input_takes_no_memory_of_its_own():
    tensors = [Lifetime(4.0, 0, 0), Lifetime(4.0, 0, 1, is_in_place=True)]
    alive, sent = alive_bytes(tensors, 2)
    assert (alive.tolist(), sent.tolist()) == ([4.0, 4.0], [4.0, 0.0])


@pytest.mark.parametrize("seed", range(20))
def test_random_rows_against_a_walk(seed):
    """Each tensor is followed kernel by kernel, without sums of changes."""
    drawn = np.random.default_rng(seed)
    count, sizes, kernels = int(drawn.integers(2, 9)), {"n": 3}, []
    for number in range(count):
        sizes[f"d{number}"] = int(drawn.integers(1, 9))
        known = ["x", *(f"k{i}" for i in range(number))]
        read = drawn.choice(known, size=min(len(known), int(drawn.integers(1, 4))), replace=False)
        operands = tuple(Operand(str(s), ("n",) if s == "x" else (f"d{str(s)[1:]}",)) for s in read)
        kernels.append(Kernel(f"k{number}", Unit.VECTOR, (f"d{number}",), operands))
    made = graph(kernels, sizes, (f"k{count - 1}",))
    alive, sent = alive_bytes(list(lifetimes(made)), count)
    for now in range(count):
        held = crossing = 0.0
        for name, size in {"x": 3, **{f"k{i}": sizes[f"d{i}"] for i in range(count)}}.items():
            readers = [i for i, k in enumerate(kernels) if name in {o.source for o in k.inputs}]
            begin = min(readers, default=count) if name == "x" else int(name[1:])
            end = max(readers, default=begin)
            held += size * (begin <= now <= end)
            crossing += size * (begin <= now < end)
        assert (alive[now], sent[now]) == (held, crossing)


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "mamba2-2.7b"])
def test_rows_of_models_hold_all_their_weights(name):
    for part in model_graphs(load_model(name), 128):
        row = kernel_row(part)
        held = sum(float(column.sum()) for column in row.resident_bytes.values())
        own = part.repeats * sum(part.tensor_bytes(w) for k in part.kernels for w in k.weights)
        assert held == pytest.approx(own)
        assert (row.output_bytes >= 0).all()
        assert row.output_bytes[-1] == 0


def test_kernels_that_sum_wait_for_the_cores_of_a_chip():
    made, machine = load_graph("llama3-8b.layer0", tokens=128), calibrated_system("4xWSE-3")
    free = kernel_row(made, machine, 0, FREE_SUMS).layer_s.sum()
    slow = kernel_row(made, machine, 0, SramConstants(1e-6)).layer_s.sum()
    summing = sum(bool(kernel.contracted) for kernel in made.kernels) * made.repeats
    assert slow - free == pytest.approx(summing * 1e-6)
    assert 0 < summing < len(made.kernels) * made.repeats


def test_a_graph_is_cut_by_the_command(capsys):
    ask = ["partition", "llama3-8b.whole", "--seq", "512", "--capacity", "4GB", "--json"]
    assert main(ask) == 0
    found = json.loads(capsys.readouterr().out)
    weights = sum(stage["load_parts_bytes"]["weights"] for stage in found["stages"])
    assert weights == pytest.approx(2 * 8.03e9, rel=0.01)  # 8.03 billion parameters of two bytes
    assert len(found["stages"]) == found["proof"]["num_stages"] >= found["proof"]["lower_bound"]
    assert sum(stage["num_layers"] for stage in found["stages"]) == found["num_layers"]
    for stage in found["stages"]:
        assert stage["held_bytes"] <= 4e9


def test_times_are_those_of_the_roofline():
    on_hbm = mw.partition("gpt3-175b-layer", on="96xH100", level="hbm", objective="time")
    near = mw.partition("gpt3-175b-layer", on="96xWSE-3", objective="time")
    assert on_hbm.passes_per_s is not None
    assert near.passes_per_s is not None
    assert near.passes_per_s > on_hbm.passes_per_s


def test_options_of_models_are_refused_for_graphs_and_the_other_way():
    with pytest.raises(SpecError, match="applies only with a model"):
        mw.partition("dlrm-a", capacity="1TB", tp=2)
    with pytest.raises(SpecError, match="applies only with a graph"):
        mw.partition("llama3-8b", on="4xWSE-3", seq=128, dim={"batch": 8})
    with pytest.raises(SpecError, match=r"is needed \(or --on"):
        mw.partition("dlrm-a")
    with pytest.raises(SpecError, match="time needs devices"):
        mw.partition("dlrm-a", capacity="1TB", objective="time")
