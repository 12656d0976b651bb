"""Problems with kernels left out: never slower than the whole, by every chain; and put together."""

from dataclasses import replace

import numpy as np
import pytest
from fusion_problems import GRID, best_by_hand, random_problem, tiled_problem
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright.dataflow.fusion.fewer_kernels as fewer
import meshwright.dataflow.fusion.lattice as lattices
import meshwright.dataflow.fusion.search as search
from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusion.fewer_kernels import (
    fewer_kernels,
    least_prices,
    put_back,
    without,
)
from meshwright.dataflow.fusion.price import least_of_larger, price_partitions
from meshwright.dataflow.fusion.problem import OWN, Tensors
from meshwright.dataflow.fusion.search import WeightedProblem, best_of, evaluate, fuse, orders_of
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL

ROUNDED = 1 + 1e-12
RULES = st.sampled_from([OWN, DFMODEL])
SEEDS = st.integers(0, 2**31)


def optimum_s(problem):
    try:
        return fuse(problem).time_s
    except InfeasibleError:
        return np.inf


@given(seed=SEEDS, rules=RULES, num_phases=st.integers(1, 3), data=st.data())
def test_no_partitions_are_faster_than_the_best_without_some_kernels(seed, rules, num_phases, data):
    problem = random_problem(seed, 6, rules, num_phases=num_phases)
    left_out = data.draw(st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=5))
    assert optimum_s(without(problem, left_out)) <= optimum_s(problem) * ROUNDED


@settings(max_examples=20)
@given(seed=SEEDS, rules=RULES, left_out=st.permutations(range(4)))
def test_no_chain_priced_by_hand_is_faster_either(seed, rules, left_out):
    problem = random_problem(seed, 4, rules)
    assert optimum_s(without(problem, left_out[:2])) <= best_by_hand(problem) * ROUNDED


def chain_by_chance(problem, chance):
    """Partitions of some order of the kernels, shape (partitions, kernels)."""
    part, order = np.zeros(problem.num_kernels, int), []
    while len(order) < problem.num_kernels:
        ready = [
            k for k in range(problem.num_kernels)
            if k not in order and set(np.flatnonzero(problem.needs[k])) <= set(order)
        ]  # fmt: skip
        kernel = int(chance.choice(ready))
        is_cut = order and (
            problem.phase[order[-1]] != problem.phase[kernel] or chance.random() < 0.3
        )
        part[kernel] = (part[order[-1]] if order else 0) + bool(is_cut)
        order.append(kernel)
    return part == np.arange(part.max() + 1)[:, None]


@given(seed=SEEDS, rules=RULES, num_kernels=st.integers(2, 12))
def test_every_partition_takes_no_less_than_what_is_left_of_it(seed, rules, num_kernels):
    chance = np.random.default_rng(seed)
    problem = random_problem(seed, num_kernels, rules, num_phases=1 + seed % 2)
    left_out = chance.permutation(num_kernels)[: chance.integers(1, num_kernels)]
    sets = chain_by_chance(problem, chance)
    rest = np.delete(sets, left_out, axis=1)
    fits = price_partitions(problem, sets).fits & rest.any(axis=1)
    whole = price_partitions(problem, sets[fits])
    kept = np.setdiff1d(np.arange(num_kernels), left_out)
    found = least_prices(problem, without(problem, left_out.tolist()), kept, rest[fits])
    assert found.number.tolist() == list(range(int(fits.sum())))
    assert np.all((found.sram_bytes <= whole.sram_bytes) | (whole.weight_parts > 1))
    for column in ("compute_s", "dram_s", "network_s", "fill_s", "moved_bytes", "crossing_bytes"):
        taken, left = getattr(whole, column), getattr(found, column)
        assert np.all(left <= taken * ROUNDED), column


def test_kernels_between_others_take_their_cores_and_buffers():
    row = random_problem(3, 4, OWN)
    one = row.choices[0][0][:1], row.choices[0][1][:1]
    row = replace(row, reads=np.eye(4, k=-1, dtype=bool), choices=(one,) * 4, phase=row.phase * 0)
    few = replace(row, grid=replace(row.grid, num_cores=3 * int(one[0][0])))
    rest, ends = without(few, [1, 2]), np.array([[True, True], [True, False]])
    assert price_partitions(rest, ends).fits.tolist() == [True, True]
    assert least_prices(few, rest, np.array([0, 3]), ends).number.tolist() == [1]


def test_what_a_set_hands_on_may_stay_in_a_larger_one():
    # 0 writes for 1 and 2, in buffers of 5 and 3 inside; what 2 reads from outside takes 4
    problem = random_problem(3, 3, OWN)
    tensors = Tensors(
        writer=np.array([0]), readers=np.array([[1, 2]]), sequence_bytes=np.ones(1),
        inside_bytes=np.array([[5.0, 3.0]]), written_bytes=np.array([2.0]),
        read_bytes=np.array([[4.0, 4.0]]),
    )  # fmt: skip
    sets = np.array([[True, True, False], [False, True, True]])
    for sram, expected in ((4.9, [False, True]), (5.0, [True, True]), (3.9, [False, False])):
        grid = replace(problem.grid, sram_bytes=sram)
        asked = replace(problem, grid=grid, tensors=tensors, held_bytes=np.zeros(3))
        assert least_of_larger(asked, sets)[0].tolist() == expected


def tensor(writer, readers, whole, *, inside=2.0, written=3.0, read=5.0):
    return fewer._Joined(writer, dict.fromkeys(readers, (inside, read)), whole, written)


@pytest.mark.parametrize(
    ("given_by", "made", "expected"),
    [
        # 0 -> 1 -> 2 of fewer bytes: one tensor from 0 to 2, in the buffers of both
        ([(0, [1], 8.0)], [(1, [2], 4.0)], [(0, {2: (4.0, 5.0)}, 4.0, 1.0)]),
        # 2 reads what 0 wrote already: nothing is lost
        ([(0, [1, 2], 8.0)], [(1, [2], 1.0)], [(0, {2: (4.0, 5.0)}, 8.0, 3.0)]),
        # another reader of a larger tensor keeps it; what 1 made is forgotten
        ([(0, [1, 3], 8.0)], [(1, [2], 4.0)], [(0, {3: (2.0, 5.0)}, 8.0, 3.0)]),
        # of a smaller one the reader of 1 becomes a reader
        ([(0, [1, 3], 4.0)], [(1, [2], 8.0)], [(0, {3: (2.0, 5.0), 2: (4.0, 5.0)}, 4.0, 1.0)]),
        # a source and an end vanish
        ([], [(1, [2], 4.0)], []),
        ([(0, [1], 8.0)], [], []),
    ],
)
def test_what_a_kernel_made_is_joined_to_what_it_read(given_by, made, expected):
    tensors = [tensor(*row) for row in given_by] + [tensor(*row, written=1.0) for row in made]
    found = fewer._joined(tensors, 1)
    assert [(t.writer, t.readers, t.sequence_bytes, t.written_bytes) for t in found] == expected


def test_a_kernel_without_which_nothing_is_known_leaves_its_setup():
    problem = random_problem(3, 5)
    found = without(problem, [0, 4])
    assert found.setup_bytes.sum() == problem.setup_bytes.sum()
    assert found.names == ("k1", "k2", "k3")


def test_what_needed_a_kernel_needs_what_it_needed():
    row = replace(random_problem(3, 4), reads=np.eye(4, k=-1, dtype=bool))
    assert np.argwhere(without(row, [1, 2]).reads).tolist() == [[1, 0]]


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_kernels_that_are_put_back_make_ideals_of_the_whole(seed, late, monkeypatch):
    problem = random_problem(seed, 12, OWN, num_phases=1 + seed % 3)
    monkeypatch.setattr(fewer, "MOST_STEPS", 40)
    kept = fewer_kernels(problem)
    assert 0 < len(kept.kept) < 12
    lattice = put_back(problem, kept, late=late)
    for ideal in lattice.ideals:
        assert not np.any(problem.needs[ideal] & ~ideal)
    assert not lattice.ideals[0].any()
    assert lattice.ideals[-1].all()
    for members in lattice.sets:
        assert len(set(problem.phase[members].tolist())) == 1
    assert np.array_equal(
        lattice.sets[lattice.partition],
        lattice.ideals[lattice.target] & ~lattice.ideals[lattice.source],
    )


@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize("most_steps", [6, 25])
@pytest.mark.parametrize("seed", range(12))
def test_a_wide_graph_has_the_optimum_between_its_bound_and_its_answer(
    seed, most_steps, tiles, monkeypatch
):
    rules = [OWN, DFMODEL][seed % 2]
    problem = random_problem(seed, 6, rules, num_phases=1 + seed % 2)
    problem = tiled_problem(seed, 6, tiles) if tiles > 1 else problem
    exact_s = optimum_s(problem)
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    monkeypatch.setattr(fewer, "MOST_STEPS", most_steps)
    try:
        found = fuse(problem)
    except InfeasibleError:
        return  # what was looked at does not fit; the optimum may
    assert orders_of(problem).least_s <= exact_s * ROUNDED
    assert found.bound_s <= exact_s * ROUNDED
    assert exact_s <= found.time_s * ROUNDED
    assert found.counts.num_kept is not None
    sets = problem.sets_of([[one.name for one in part.kernels] for part in found.partitions])
    assert evaluate(problem, sets).time_s == pytest.approx(found.time_s, rel=1e-9)


def test_a_wide_graph_that_fits_nowhere_is_refused(monkeypatch):
    problem = random_problem(1, 6, OWN)
    none = replace(problem, grid=replace(problem.grid, sram_bytes=0.5))
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    with pytest.raises(InfeasibleError, match="is too small"):
        fuse(none)


def test_most_small_wide_graphs_are_answered(monkeypatch):
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    monkeypatch.setattr(fewer, "MOST_STEPS", 25)
    problems = [random_problem(seed, 6, OWN) for seed in range(30)]
    answered = [np.isfinite(optimum_s(problem)) for problem in problems]
    monkeypatch.undo()
    possible = [np.isfinite(optimum_s(problem)) for problem in problems]
    assert sum(answered) >= 0.9 * sum(possible)


def test_candidates_are_pruned_by_the_raised_bound_of_wide_graphs(monkeypatch):
    fast = replace(random_problem(1, 8, OWN), grid=GRID)
    slow = replace(fast, num_tiles=3 * fast.num_tiles)
    whole = fast.tensors.sequence_bytes
    tensors = replace(fast.tensors, sequence_bytes=3.0 * whole)
    slow = replace(slow, tensors=tensors)
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    found = best_of([WeightedProblem(slow), WeightedProblem(fast)])
    assert found.number == 1
    assert (found.num_fused, found.num_pruned) == (1, 1)
    assert found.weighted_s == fuse(fast).time_s


def test_a_wide_graph_for_which_nothing_was_found_keeps_its_bound(monkeypatch):
    fast = replace(random_problem(1, 8, OWN), grid=GRID)
    slow = replace(fast, num_tiles=3 * fast.num_tiles)
    monkeypatch.setattr(lattices, "MOST_IDEALS", 3)
    put_together = search._put_together

    def finds_nothing_fast(problem, kept):
        if problem is fast:
            raise InfeasibleError("not all partitions were tried")
        return put_together(problem, kept)

    monkeypatch.setattr(search, "_put_together", finds_nothing_fast)
    found = best_of([WeightedProblem(fast), WeightedProblem(slow)])
    assert found.number == 1
    assert found.bound_s == orders_of(fast).least_s < found.weighted_s


def test_a_row_of_kernels_with_too_many_steps_is_shortened(monkeypatch):
    problem = random_problem(2, 8, OWN)
    row = replace(problem, reads=np.tril(np.ones((8, 8), bool), -1))
    exact_s = optimum_s(row)
    monkeypatch.setattr(lattices, "MOST_STEPS", 20)
    monkeypatch.setattr(fewer, "MOST_STEPS", 15)
    assert len(fewer_kernels(row).kept) == 5
    found = fuse(row)
    assert found.bound_s <= exact_s <= found.time_s
