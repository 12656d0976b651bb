"""Decode on the mesh of cores of a chip: sums along lines, as formula and word by word."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_chip, load_system
from meshwright.cost.communication import Collectives
from meshwright.cost.operator import device_rates, operator_s
from meshwright.serve.mesh_decode import line_s, line_words, product_words
from meshwright.serve.passes import piece_cost
from meshwright.serve.serve import serving_problem
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.system import CoreMesh
from meshwright.spec.workload import Decode, Precision, SoftwareStack

PLAN_OPTIONS = PlanOptions(sequence_parallel=False, zero_stage=0)


def mesh_of(rows=3, columns=4, hop_s=1e-9, link=4e9, word=4.0):
    return CoreMesh(rows=rows, columns=columns, hop_s=hop_s, link_bytes_per_s=link, word_bytes=word)


def replayed(words, held, hop_s):
    """Return the sums on all cores of a line, and when the last word arrives [s].

    A core may send a word towards the middle when it has those of all cores behind it, and a sum
    when it has it.
    """
    partial, sums, ready_s = np.array(held), {}, defaultdict(float)
    middle = len(held) // 2
    for one in sorted(words, key=lambda word: (word.sent_s, not word.is_sum)):
        arrives_s = one.sent_s + hop_s
        if one.is_sum:
            if one.source == middle:
                assert one.sent_s >= ready_s[middle, one.word, False] - 1e-18
                sums[middle, one.word] = partial[middle, one.word]
            assert one.sent_s >= ready_s[one.source, one.word, True] - 1e-18
            sums[one.target, one.word] = sums[one.source, one.word]
        else:
            assert one.sent_s >= ready_s[one.source, one.word, False] - 1e-18
            partial[one.target, one.word] += partial[one.source, one.word]
        key = (one.target, one.word, one.is_sum)
        ready_s[key] = max(ready_s[key], arrives_s)
    whole = np.array([[sums.get((core, word), np.nan) for word in range(len(held[0]))]
                      for core in range(len(held))])  # fmt: skip
    return whole, max(ready_s.values(), default=0.0)


def test_a_sum_along_a_line_by_hand():
    """Five cores, three words: two hops in and two back; the other two words follow the first."""
    assert line_s(5, 12.0, mesh_of()) == pytest.approx((4e-9, 2e-9))
    assert line_s(4, 4.0, mesh_of()) == pytest.approx((4e-9, 0.0))
    assert line_s(1, 400.0, mesh_of()) == (0.0, 0.0)
    assert line_s(2, 9.0, mesh_of(hop_s=3e-9, link=2e9)) == pytest.approx((6e-9, 4e-9))


@given(cores=st.integers(2, 11), num_words=st.integers(1, 6), hop=st.sampled_from([1, 2, 7]))
def test_words_on_links_take_as_long_as_the_formula(cores, num_words, hop):
    mesh = mesh_of(hop_s=hop * 1e-9)
    held = np.arange(cores * num_words).reshape(cores, num_words) ** 2
    words = list(line_words(cores, num_words, mesh))
    sums, last_s = replayed(words, held, mesh.hop_s)
    assert (sums == held.sum(axis=0)).all()
    assert last_s == pytest.approx(sum(line_s(cores, 4.0 * num_words, mesh)))
    links = defaultdict(list)
    for one in words:
        assert abs(one.source - one.target) == 1
        links[one.source, one.target].append(one.sent_s)
    assert len(links) == 2 * (cores - 1)
    for times in links.values():
        assert np.diff(sorted(times)).min(initial=1.0) > 0.99e-9  # one word at a time


def test_two_products_need_no_transposition():
    """x (9) by 9 x 10 by 10 x 7 on 3 x 4 cores, each block on its core, by the words that move."""
    mesh, rng = mesh_of(), np.random.default_rng(1)
    first, second = rng.integers(-9, 9, (9, 10)), rng.integers(-9, 9, (10, 7))
    values, time_s = rng.integers(-9, 9, 9), 0.0
    expected = values @ first @ second
    for side, weight in ((0, first), (1, second)):
        cores, lines = (3, 4) if side == 0 else (4, 3)
        words, made, last_s = defaultdict(list), np.zeros(weight.shape[1], dtype=int), 0.0
        for line, one in product_words(weight.shape[1], side, mesh):
            words[line].append(one)
        for line in range(lines):
            # Core i of the line has the inputs i, i + cores, ... and the outputs of the line.
            held = np.array([values[i::cores] @ weight[i::cores, line::lines]
                             for i in range(cores)])  # fmt: skip
            sums, line_end_s = replayed(words[line], held, mesh.hop_s)
            assert (sums == sums[0]).all()
            made[line::lines], last_s = sums[0], max(last_s, line_end_s)
        most = -(-weight.shape[1] // lines)
        assert last_s == pytest.approx(sum(line_s(cores, 4.0 * most, mesh)))
        values, time_s = made, time_s + last_s
    assert (values == expected).all()
    # 2 hops and 2 more words (10 outputs on 4 lines), then 4 hops and 2 more words (7 on 3).
    assert time_s == pytest.approx((2 + 2 + 4 + 2) * 1e-9)


def layer_s(batch=1, context=4096, model="llama3-8b", **changes):
    """Return the time of the links in the first layer and in the head on a WSE-2 [s]."""
    system = load_system("1xWSE-2")
    mesh = system.chip.core_mesh.model_copy(update=changes)
    chip = system.chip.model_copy(update={"core_mesh": mesh})
    work = Decode(batch_size=batch, context_length=context)
    system = system.model_copy(update={"chip": chip})
    problem = serving_problem(model, system, work, "generic", "calibrated")
    strategy = stack([make_strategy(micro_batch_size=batch)])
    links = Collectives(problem.network(PLAN_OPTIONS.axis_order, strategy), 0.0)
    pieces = [(0, problem.pieces[0]), (len(problem.pieces) - 1, problem.pieces[-1])]
    costs = [piece_cost(problem, PLAN_OPTIONS, strategy, one, at, links) for at, one in pieces]
    return [float(cost.mesh_s[0]) for cost in costs]


def test_a_layer_of_llama_by_hand():
    """On 850 rows of 1000: norm, queries, normaliser, values, norm and up cross 850 cores, output
    and down 1000; a head lies on 1000 // 32 = 31, whose scores cross 30 links. The head of the
    model: norm and logits. Words hide behind the arithmetic of one sequence."""
    layer, head = layer_s()
    assert layer == pytest.approx((6 * 850 + 2 * 1000 + 30) * 0.91e-9, rel=2e-3)
    assert head == pytest.approx(2 * 850 * 0.91e-9, rel=0.1)


def test_words_beyond_the_arithmetic_count():
    """At a hundredth of the rate a word takes 90.9 ns, and 6 of the queries (6144 over 1000) follow
    the first one. 0.106 us of them hide: the products and attention of a layer."""
    fast, slow = layer_s()[0], layer_s(link_bytes_per_s=4.4e7)[0]
    by_hand = 6 + 4 + 0 + 4 + 4 + 28 + 4  # queries, scores, normaliser, values, output, up, down
    assert slow - fast == pytest.approx(by_hand * 90.9e-9 - 0.106e-6, rel=0.01)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite", "gemma3-4b"])
def test_more_of_anything_is_never_faster(model):
    least = layer_s(model=model)
    for changes in ({"batch": 8}, {"context": 8192}, {"hop_s": 2e-9}, {"rows": 1000}):
        more = layer_s(model=model, **changes)
        assert all(one >= other for one, other in zip(more, least, strict=True))


def test_wafers_state_the_mesh_of_their_cores():
    for name, cores in (("WSE-2", 850_000), ("WSE-3", 900_000)):
        mesh = load_chip(name).core_mesh
        assert mesh.rows * mesh.columns == cores


@pytest.mark.parametrize(("name", "launch_s"), [("WSE-2", 0.0), ("Dojo-D1", 0.0), ("H100", 5e-6)])
def test_no_host_launches_kernels_on_a_dataflow_chip(name, launch_s):
    """In training and serving; an H100 without a fit takes the 5 us of eager kernels."""
    chip, software = load_chip(name), SoftwareStack()
    constants = load_calibration(chip.family, "uncalibrated")
    rates = device_rates(chip, Precision(), software, constants)
    for seconds in (rates.launch_s, rates.host_s, operator_s(chip, software, constants)):
        assert seconds == pytest.approx(launch_s, rel=1e-9, abs=0.0)
