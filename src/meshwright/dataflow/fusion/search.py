"""The best partitions of a graph on a chip, with the proof or the gap.

Of many problems, such as all tiles and degrees, the best one is found by pruning with bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from time import monotonic

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, larger, where
from meshwright.base.errors import Fault, InfeasibleError, SpecError
from meshwright.base.units import format_bytes
from meshwright.dataflow.fusion.answer import (
    FusedPartition,
    Fusion,
    FusionChoice,
    PlacedKernel,
    SearchCounts,
)
from meshwright.dataflow.fusion.cores import cores_needed
from meshwright.dataflow.fusion.fewer_kernels import (
    MOST_STEPS,
    FewerKernels,
    fewer_kernels,
    put_back,
)
from meshwright.dataflow.fusion.lattice import Lattice, chain_of, lattice_of, limits_of, row_of
from meshwright.dataflow.fusion.paths import Columns, Finish, LatticeSteps, best_path
from meshwright.dataflow.fusion.price import (
    PartitionPrices,
    PartitionTimes,
    bound_s,
    price_partitions,
    price_windows,
)
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.wide_graphs import ROUNDING, search_all_orders
from meshwright.dataflow.ideals import TooWideError

KnownLattices = dict[tuple[object, ...], Lattice | None]
"""Lattices by the limits that they follow from; None for a wide graph."""


Tile = tuple[str, int]
"""A dim, and the length of a tile of it."""
SAME = 1e-12
"""Relative tolerance by which the same bytes, summed in another order, may exceed a memory."""


@dataclass(frozen=True)
class KernelOrders:
    """The orders of kernels that are searched for a problem."""

    lattice: Lattice | None
    """Lattice of all kernels; None for a wide graph, and kernel by kernel."""
    least_s: float
    """Lower bound of the time of any partitions."""
    fewer: FewerKernels | None = None
    """Kernels of a wide graph that are searched in all orders."""


def orders_of(problem: FusionProblem, known: KnownLattices | None = None) -> KernelOrders:
    """Return the orders that are searched; ``known`` lattices are shared, and new ones added.

    Raises
    ------
    InfeasibleError
        When partitions do not fit even with the lighter kernels of a wide graph left out.
    """
    least_s = bound_s(problem)
    if problem.runs_by_kernel:
        return KernelOrders(None, least_s)
    known, limits = {} if known is None else known, limits_of(problem)
    if limits.key not in known:
        try:
            known[limits.key] = lattice_of(limits)
        except TooWideError:
            known[limits.key] = None
    lattice = known[limits.key]
    if lattice is not None:
        return KernelOrders(lattice, least_s)
    fewer = fewer_kernels(problem)
    found = _best([_solve(fewer.problem, fewer.lattice, fewer.prices)], problem)
    return KernelOrders(None, max(least_s, found.time_s), fewer)


def fuse(
    problem: FusionProblem, orders: KernelOrders | None = None, *, enough_s: float = np.inf
) -> Fusion:
    """Return the best partitions of a problem.

    Parameters
    ----------
    problem
        Kernels to fuse; kernel by kernel there is one answer.
    orders
        Those of the problem, where they are known.
    enough_s
        Seconds of another answer: in a wide graph only faster partitions are looked for.

    Raises
    ------
    InfeasibleError
        When some kernel fits no partition, or DRAM holds not one sequence.
    """
    orders = orders_of(problem) if orders is None else orders
    if orders.fewer is not None:
        return _looked_beyond(
            problem, _put_together(problem, orders.fewer), orders.least_s, enough_s
        )
    if orders.lattice is not None:
        return _best([_solve(problem, orders.lattice)], problem)
    return evaluate(problem, np.eye(problem.num_kernels, dtype=bool))


def _put_together(problem: FusionProblem, fewer: FewerKernels) -> Fusion:
    """Return the best partitions of a wide graph in all orders of the kernels that were kept.

    Where the others fit neither late nor early, those of all kernels in their own order.
    """
    lattices = [put_back(problem, fewer, late=late) for late in (True, False)]
    found = [_solve(problem, lattice) for lattice in lattices]
    if not any(found):
        found = [_solve(problem, row_of(limits_of(problem), MOST_STEPS))]
    if not any(found):
        why = why_nothing_fits(problem)
        raise InfeasibleError(f"{why}; of a wide graph not all partitions were tried")
    best = _best(found, problem)
    return replace(best, counts=replace(best.counts, num_kept=len(fewer.kept)))


def _looked_beyond(
    problem: FusionProblem, found: Fusion, least_s: float, enough_s: float
) -> Fusion:
    """Return the answer of a wide graph with a bound of all orders, or a better one that it shows.

    A better path is taken at the micro-batch that DRAM holds for it. Of an answer that is slower
    than another one, only paths faster than that one are looked for.
    """
    if found.time_s <= least_s:
        return found
    known_s = min(found.time_s, enough_s)
    beyond = search_all_orders(problem, limits_of(problem), known_s)
    if beyond.sets is None and known_s < found.time_s and beyond.bound_s >= known_s * ROUNDING:
        return replace(found, bound_s=max(known_s, least_s))
    if beyond.sets is not None:
        try:
            shown = evaluate(problem, beyond.sets)
        except InfeasibleError:
            shown = found
        if shown.time_s < found.time_s:
            found = replace(shown, counts=found.counts)
    return replace(found, bound_s=min(max(beyond.bound_s, least_s), found.time_s))


def evaluate(
    problem: FusionProblem, sets: BoolArray, tiles: Sequence[Tile] | None = None
) -> Fusion:
    """Return the result of given partitions.

    Parameters
    ----------
    problem
        Their problem.
    sets
        Shape (partitions, kernels), in the order of time.
    tiles
        Their tiles; None: the best.

    Raises
    ------
    SpecError
        When a kernel is in none or in several, comes before a kernel that it needs, or shares a
        partition with another phase.
    InfeasibleError
        When a partition does not fit, or DRAM holds not one sequence.
    """
    _check_partitions(problem, sets)
    prices = None
    if tiles is not None:
        numbers = {(tile.tiled, tile.tile): place for place, tile in enumerate(problem.tiles)}
        taken, found = np.array([numbers[tile] for tile in tiles]), []
        for tile in np.unique(taken).tolist():
            rows = np.flatnonzero(taken == tile)
            priced = price_partitions(problem.tiles[tile], sets[rows])
            found.append(replace(priced, number=rows, tile=np.full(len(rows), tile)))
        prices = PartitionPrices.joined(found)
    return _best([_solve(problem, chain_of(sets), prices)], problem)


def _check_partitions(problem: FusionProblem, sets: BoolArray) -> None:
    """Refuse partitions that cannot run one after the other."""
    times = sets.sum(axis=0)
    faults = [
        Fault(
            f"partitions.{problem.names[kernel]}", f"is in {times[kernel]} partitions, not in one"
        )
        for kernel in np.flatnonzero(times != 1).tolist()
    ]
    if not faults:
        place = sets.argmax(axis=0)
        is_early = problem.needs & (place[:, None] < place)
        is_mixed = (place[:, None] == place) & (problem.phase[:, None] > problem.phase)
        faults = [
            Fault(
                f"partitions.{problem.names[kernel]}",
                f"runs before or with {problem.names[other]}, which must be done by then",
            )
            for kernel, other in np.argwhere(is_early | is_mixed).tolist()
        ]
    if faults:
        raise SpecError(faults)


def _best(found: Iterable[Fusion | None], problem: FusionProblem) -> Fusion:
    """Return the fastest result.

    Raises
    ------
    InfeasibleError
        When there is none.
    """
    results = [fusion for fusion in found if fusion is not None]
    if not results:
        raise InfeasibleError(why_nothing_fits(problem))
    return min(results, key=lambda fusion: fusion.time_s)


def _solve(
    problem: FusionProblem, lattice: Lattice, prices: PartitionPrices | None = None
) -> Fusion | None:
    """Return the best partitions of a lattice; None where none fit."""
    if prices is None:
        prices = price_windows(problem, lattice.windows)
    num_steps = len(lattice.source)
    lattice = lattice.in_tiles(prices.number)
    best: _Found | None = None
    num_pairs = 0
    alive = _alive_bytes(problem, lattice, prices) if problem.rules.loads_ahead else None
    for allowed in problem.tried_micro_batches:
        most_s = np.inf if best is None else best.time_s
        if alive is None:
            found, pairs = _within_dram(problem, lattice, prices, allowed, most_s)
        else:
            found, pairs = _loaded_ahead(problem, lattice, prices, alive, allowed[1], most_s)
        num_pairs += pairs
        best = best if found is None else found
    if best is None:
        return None
    counts = SearchCounts(len(lattice.ideals), num_steps, lattice.num_sets, num_pairs)
    taken = prices.rows(lattice.partition[list(best.steps)])
    exposed_s, _ = _walked(problem, taken, best.micro_batch, best.weight_byte_s)
    return Fusion(
        problem=problem,
        partitions=tuple(
            _partition(problem, lattice.members(step), taken, row, best, exposed)
            for row, (step, exposed) in enumerate(zip(best.steps, exposed_s.tolist(), strict=True))
        ),
        micro_batch=best.micro_batch,
        held_bytes=best.held_bytes,
        time_s=best.time_s,
        bound_s=best.time_s,
        counts=counts,
    )


@dataclass(frozen=True)
class _Found:
    """The best path of a lattice, and the micro-batch and the weights with which it runs."""

    steps: tuple[int, ...]
    micro_batch: int
    held_bytes: float
    weight_byte_s: float
    time_s: float


def _within_dram(
    problem: FusionProblem, lattice: Lattice, prices: PartitionPrices, allowed: tuple[int, int],
    most_s: float,
) -> tuple[_Found | None, int]:  # fmt: skip
    """Return the best path where the bytes of all tensors limit the micro-batch, and its pairs."""
    number = np.flatnonzero(prices.fits[lattice.partition])
    partition = lattice.partition[number]
    seconds, num_bytes = prices.run_s(allowed[1])[partition], prices.crossing_bytes[partition]

    def advance(first: FloatArray, second: FloatArray, rows: IntArray) -> Columns:
        return first + seconds[rows], second + num_bytes[rows]

    steps = LatticeSteps(lattice, number, (seconds, num_bytes), advance)
    path, pairs = best_path(steps, _finish(problem, allowed))
    if path is None or problem.whole_s(path.finished_s, 1.0) >= most_s:
        return None, pairs
    size = int(_sequences(problem, np.array([path.numbers[1]]), allowed)[0])
    time_s = problem.whole_s(path.finished_s, problem.ramp(size))
    byte_s = problem.weight_byte_s()
    return _Found(path.steps, size, path.numbers[1], byte_s, time_s), pairs


def _loaded_ahead(
    problem: FusionProblem, lattice: Lattice, prices: PartitionPrices, alive: FloatArray, size: int,
    most_s: float,
) -> tuple[_Found | None, int]:  # fmt: skip
    """Return the fastest path below some time with weights that come ahead, and the pairs kept.

    Tensors that wait in DRAM push weights into the memories behind it. So the least bytes of a
    range price the weights, the most ones limit the steps: a bound. The range is halved until the
    bound is no better than the best path, priced by its own bytes.

    Parameters
    ----------
    alive
        Bytes of the tensors of one sequence that wait during each step.
    """
    held, fits = size * alive, prices.fits[lattice.partition]
    if problem.tensors_in_sram:
        used = problem.dram_shares * held + prices.sram_bytes[lattice.partition]
        fits = fits & (used <= problem.grid.sram_bytes)
    fits = fits & (held <= problem.most_tensor_bytes + SAME * problem.grid.dram_bytes)
    levels = np.unique(held[fits])
    best, num_pairs, ramp = None, 0, problem.ramp(size)
    waiting = [(0.0, 0, len(levels) - 1)] if len(levels) else []
    while waiting and waiting[0][0] < most_s:
        _, first, last = heappop(waiting)
        byte_s = problem.weight_byte_s(levels[first])
        number = np.flatnonzero(fits & (held <= levels[last]))
        steps = _loading_steps(problem, lattice, prices, number, size, byte_s)
        path, pairs = best_path(steps, np.maximum, problem.steady_s(most_s, ramp))
        num_pairs += pairs
        if path is None:
            continue
        bound = problem.whole_s(path.finished_s, ramp)
        taken = list(path.steps)
        most, time_s = float(held[taken].max()), bound
        if problem.weight_byte_s(levels[last]) != byte_s:
            middle = (first + last) // 2
            heappush(waiting, (bound, first, middle))
            heappush(waiting, (bound, middle + 1, last))
            byte_s = problem.weight_byte_s(most)
            _, end_s = _walked(problem, prices.rows(lattice.partition[taken]), size, byte_s)
            time_s = problem.whole_s(end_s, ramp)
        if time_s < most_s:
            most_s = time_s
            best = _Found(path.steps, size, most / size, byte_s, time_s)
    return best, num_pairs


def _loading_steps(
    problem: FusionProblem, lattice: Lattice, prices: PartitionPrices, number: IntArray, size: int,
    byte_s: float,
) -> LatticeSteps:  # fmt: skip
    """Return steps whose weights come ahead, a path being (its end, when loading may begin)."""
    partition = lattice.partition[number]
    times = PartitionTimes.of(problem, prices, size, byte_s).rows(partition)
    passed_s = larger(times.run_s - times.room_s, times.memory_s)
    least = (prices.spaced_s(size)[partition], times.load_s + passed_s)

    def advance(end: FloatArray, ready: FloatArray, rows: IntArray) -> Columns:
        _, after, loads = times.rows(rows).after(end, ready)
        return after, loads

    return LatticeSteps(lattice, number, least, advance)


def _walked(
    problem: FusionProblem, prices: PartitionPrices, size: int, byte_s: float
) -> tuple[FloatArray, float]:
    """Return the seconds in which each partition waits for weights, and the end of the last [s]."""
    times, count = PartitionTimes.of(problem, prices, size, byte_s), len(prices.fits)
    waited, end, ready = np.zeros(count), np.zeros(1), np.zeros(1)
    for place in range(count):
        before = end
        start, end, ready = times.rows(np.array([place])).after(end, ready)
        waited[place] = (start - before)[0]
    return waited, float(end[0])


def _alive_bytes(problem: FusionProblem, lattice: Lattice, prices: PartitionPrices) -> FloatArray:
    """Return the bytes in the main memory while each step runs, shape (steps,).

    They are those of tensors that are written before its end, and not yet read by all.
    Tensors that only the step itself writes and reads stay on the chip.
    """
    tensors, whole = problem.tensors, problem.tensors.sequence_bytes
    written, read = np.zeros((2, len(lattice.ideals)))
    for first in range(0, len(lattice.ideals), TOGETHER):
        rows = slice(first, first + TOGETHER)
        done = np.append(lattice.ideals[rows], np.zeros((len(written[rows]), 1), bool), axis=1)
        read[rows] = _whole_bytes(done, tensors.readers, whole)
        done[:, -1] = True
        written[rows] = _whole_bytes(done, tensors.writer[:, None], whole)
    inside = prices.inside_bytes[lattice.partition]
    alive: FloatArray = larger(written[lattice.target] - read[lattice.source] - inside, 0.0)
    return alive


TOGETHER = 256
"""Ideals of similar sizes, which differ in few kernels, that are looked at together."""


def _whole_bytes(done: BoolArray, kernels: IntArray, num_bytes: FloatArray) -> FloatArray:
    """Return the bytes of the tensors with all their kernels among those done, shape (ideals,).

    ``kernels`` has shape (tensors, most). Tensors on which the ideals agree are counted once.
    """
    in_all, in_any = np.all(done, axis=0, keepdims=True)[0], np.any(done, axis=0, keepdims=True)[0]
    always, ever = np.all(in_all[kernels], axis=1), np.all(in_any[kernels], axis=1)
    differ = ever & ~always
    found: FloatArray = np.all(done[:, kernels[differ]], axis=2) @ num_bytes[differ]
    found += num_bytes[always].sum()
    return found


def _sequences(
    problem: FusionProblem, num_bytes: FloatArray, allowed: tuple[int, int]
) -> FloatArray:
    """Return the largest micro-batch that DRAM holds, up to the largest allowed."""
    room = np.floor(problem.spare_dram_bytes / larger(num_bytes, 1.0))
    found: FloatArray = np.minimum(room, float(allowed[1]))
    return found


def _finish(problem: FusionProblem, allowed: tuple[int, int]) -> Finish:
    """Return the function from seconds and bytes of partitions to the seconds of a sequence."""

    def finish(seconds: FloatArray, num_bytes: FloatArray) -> FloatArray:
        size = _sequences(problem, num_bytes, allowed)
        found: FloatArray = where(
            size >= allowed[0], seconds + problem.total_setup_s / larger(size, 1.0), np.inf
        )
        return np.atleast_1d(found)

    return finish


def _partition(
    problem: FusionProblem, members: BoolArray, prices: PartitionPrices, row: int, found: _Found,
    exposed_s: float,
) -> FusedPartition:  # fmt: skip
    """Return one priced set as a partition of a result, which waits for weights for some time."""
    kernels, size = np.flatnonzero(members).tolist(), found.micro_batch
    cycles, tile = prices.tile_cycles[row : row + 1], problem.tiles[prices.tile[row]]
    needed = [cores_needed(tile.choices[k], cycles, problem.grid.num_cores) for k in kernels]
    stored_s, run_s = float(prices.stored_s[row]) / size, float(prices.run_s(size)[row])
    return FusedPartition(
        kernels=tuple(
            PlacedKernel(problem.names[kernel], int(cores[0]))
            for kernel, cores in zip(kernels, needed, strict=True)
        ),
        compute_s=float(prices.compute_s[row]),
        dram_s=float(prices.dram_s[row]),
        network_s=float(prices.network_s[row]),
        wait_s=float((prices.rounds[row] - 1.0) * prices.busy_s[row]),
        fill_s=float(prices.fill_s[row]) / size,
        setup_s=float(prices.held_bytes[row]) * found.weight_byte_s / size + stored_s,
        exposed_setup_s=exposed_s + stored_s,
        exposed_launch_s=max(prices.launch_s / size - exposed_s - run_s, 0.0),
        sram_bytes=float(prices.sram_bytes[row]),
        held_bytes=float(problem.held_bytes[kernels].sum()),
        moved_bytes=float(prices.moved_bytes[row]),
        weight_parts=int(prices.weight_parts[row]),
        tile=tile.tile,
        tiled=tile.tiled,
    )


def why_nothing_fits(problem: FusionProblem) -> str:
    """Return the reason: kernels that do not fit even alone, or too little memory."""
    if problem.tensors_in_sram and problem.grid.sram_bytes <= 0.0:
        held = format_bytes(problem.resident_bytes)
        room = format_bytes(problem.grid.sram_bytes + problem.resident_bytes)
        return (
            f"the chip has no DRAM: all weights stay in its SRAM of {room}, and their share is "
            f"{held}: more chips hold less each"
        )
    singles = np.eye(problem.num_kernels, dtype=bool)
    alone = [price_partitions(tile, singles) for tile in problem.tiles]
    sram, needed = problem.grid.sram_bytes, np.min([one.sram_bytes for one in alone], axis=0)
    too_large = [
        f"{problem.names[kernel]} needs {format_bytes(float(needed[kernel]))} alone"
        for kernel in np.flatnonzero(~np.any([one.fits for one in alone], axis=0)).tolist()
    ]
    if too_large:
        listed = ", ".join(too_large[:4]) + (", ..." if len(too_large) > 4 else "")
        return f"SRAM of {format_bytes(sram)} is too small: {listed}; a shorter tile needs less"
    if problem.most_tensor_bytes <= 0.0:
        whole = format_bytes(problem.grid.dram_bytes + problem.grid.far_bytes)
        return f"the weights alone exceed the DRAM of {whole}: more chips hold less each"
    room = format_bytes(problem.most_tensor_bytes)
    least = problem.tried_micro_batches[-1][0]
    of = "one sequence" if least == 1 else f"{least:,} sequences at once"
    where_ = "SRAM" if problem.tensors_in_sram else "DRAM"
    return f"{where_} has {room} left after the weights: too little for the tensors of {of}"


@dataclass(frozen=True)
class WeightedProblem:
    """A problem, and the weight of one of its seconds: repetitions times devices."""

    problem: FusionProblem
    weight: float = 1.0


def best_of(
    candidates: Iterable[WeightedProblem], progress: Callable[[int, int], None] | None = None,
    until_s: float = np.inf, known: KnownLattices | None = None,
) -> FusionChoice:  # fmt: skip
    """Return the candidate of the least weighted seconds, those of the lowest bound tried first.

    There is at least one candidate. ``progress`` is called with the numbers done and of all. The
    bound of a wide graph is raised before it is fused. Once there is an answer, an interrupt or the
    monotonic time ``until_s`` ends the search; the bound is that of all candidates even so.

    Raises
    ------
    InfeasibleError
        When none fits; says why for the first one.
    """
    listed = list(candidates)
    waiting: list[tuple[float, int]] = [
        (entry.weight * bound_s(entry.problem), number) for number, entry in enumerate(listed)
    ]
    heapify(waiting)
    known = {} if known is None else known
    wide: dict[int, KernelOrders] = {}
    best: tuple[float, int, Fusion] | None = None
    least, num_fused = float("inf"), 0
    refused: dict[int, str] = {}
    while waiting and (best is None or (waiting[0][0] < best[0] and monotonic() < until_s)):
        if progress is not None:
            progress(len(listed) - len(waiting), len(listed))
        bound, number = heappop(waiting)
        entry = listed[number]
        try:
            orders = wide.pop(number, None)
            if orders is None:
                orders = orders_of(entry.problem, known)
                if orders.fewer is not None:
                    wide[number] = orders
                    heappush(waiting, (entry.weight * orders.least_s, number))
                    continue
            enough_s = np.inf if best is None else best[0] / entry.weight
            fusion = fuse(entry.problem, orders, enough_s=enough_s)
        except KeyboardInterrupt:
            if best is None:
                raise
            heappush(waiting, (bound, number))
            break
        except InfeasibleError as error:
            refused[number] = str(error)
            if orders is not None and orders.fewer is not None:
                least = min(least, entry.weight * orders.least_s)
            continue
        num_fused += 1
        least = min(least, entry.weight * fusion.bound_s)
        if best is None or entry.weight * fusion.time_s < best[0]:
            best = (entry.weight * fusion.time_s, number, fusion)
    if best is None:
        first, others = refused[min(refused)], len(refused) - 1
        more = f"; {others} more that were tried do not fit either" if others else ""
        raise InfeasibleError(f"{first}{more}")
    weighted, number, fusion = best
    open_s = waiting[0][0] if waiting else np.inf
    bound, reasons = min(least, open_s, weighted), tuple(refused.values())
    return FusionChoice(
        number, fusion, weighted, bound, num_fused, len(waiting), reasons, open_s < weighted
    )
