"""Small random fusion problems, and a price that is worked out set by set, without any columns."""

from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from meshwright.dataflow.fusion.cores import CoreGrid, MemoryTier, TileShape, core_choices
from meshwright.dataflow.fusion.problem import OWN, FusionProblem, Rules, Tensors
from meshwright.graph.kernels.kernel import Unit
from meshwright_papers.studies.dfmodel.peer_rules import DFMODEL

GRID = CoreGrid(
    num_cores=12, array_rows=2, array_columns=2, frequency_hz=1.0, sram_bytes=120.0,
    outside=(MemoryTier(1e4, 3.0),),
)  # fmt: skip

LAUNCHES = (0.0, 20.0, 60.0, 400.0)
"""Of a partition, under the own rules [s]: those of the peer know none."""


def random_problem(
    seed: int, num_kernels: int, rules: Rules = DFMODEL, *, num_phases: int = 1
) -> FusionProblem:
    """Return a problem in which all limits bind now and then."""
    chance = np.random.default_rng(seed)
    n = num_kernels
    reads = np.tril(chance.random((n, n)) < 0.35, -1)
    phase = np.sort(chance.integers(0, num_phases, n))
    shapes = [
        TileShape(
            int(chance.integers(1, 12)), int(chance.integers(1, 6)), int(chance.integers(1, 8)),
            Unit.MATRIX if chance.random() < 0.5 else Unit.VECTOR,
        )
        for _ in range(n)
    ]  # fmt: skip
    held = chance.integers(0, 40, n) * (chance.random(n) < 0.6)
    if seed % 5 == 0:
        held[chance.integers(n)] = 150
    sizes = chance.choice(["any", "one"], p=[0.8, 0.2])
    return FusionProblem(
        names=tuple(f"k{k}" for k in range(n)),
        reads=reads,
        phase=phase,
        choices=tuple(core_choices(shape, GRID) for shape in shapes),
        held_bytes=held.astype(float),
        setup_bytes=held.astype(float),
        looked_up_bytes=chance.integers(0, 40, n) * (chance.random(n) < 0.2) * 1.0,
        network_s=chance.integers(0, 30, n) * (chance.random(n) < 0.3) * 1.0,
        tensors=_tensors(chance, reads, rules),
        num_tiles=4,
        spare_dram_bytes=float(chance.integers(60, 600)),
        waits=reads & (chance.random((n, n)) < 0.3),
        micro_batches=() if sizes == "any" else (2,),
        rules=rules,
        grid=replace(GRID, launch_s=float(chance.choice(LAUNCHES)) if rules is OWN else 0.0),
    )


def _tensors(chance: np.random.Generator, reads: np.ndarray, rules: Rules) -> Tensors:
    """Return a tensor for each read, or for each writer; now and then one that goes outside."""
    n = len(reads)
    ends = []
    for writer in range(n):
        readers = np.flatnonzero(reads[:, writer]).tolist()
        if rules is OWN and chance.random() < 0.3:
            readers.append(n)
        if readers:
            ends += [(writer, readers)] if rules is OWN else [(writer, [r]) for r in readers]
    most = max((len(readers) for _, readers in ends), default=1)
    padded = [[*readers, *[readers[0]] * (most - len(readers))] for _, readers in ends]
    tile = chance.integers(1, 12, len(ends)).astype(float)
    depth = np.array(
        [[max(r - w + 1, 2) for r in row] for (w, _), row in zip(ends, padded, strict=True)]
    )
    depth = depth.reshape(len(ends), most)
    return Tensors(
        writer=np.array([writer for writer, _ in ends], np.int64),
        readers=np.array(padded, np.int64).reshape(len(ends), most),
        sequence_bytes=4.0 * tile,
        inside_bytes=depth * tile[:, None],
        written_bytes=2.0 * tile,
        read_bytes=np.repeat(2.0 * tile[:, None], most, axis=1),
    )


def tiered_problem(seed: int, num_kernels: int) -> FusionProblem:
    """Return a problem without DRAM, with DRAM, or with a memory behind it, for any objective."""
    chance = np.random.default_rng([seed, 7])
    problem = random_problem(seed, num_kernels, OWN, num_phases=1 + seed % 2)
    held, repeats = float(problem.held_bytes.sum()), float(chance.integers(1, 4))
    kind = ["none", "two", "three", "three"][seed % 4]
    changes: dict[str, object] = {}
    if kind == "none":
        room = float(chance.integers(100, 400))
        nothing = np.zeros(num_kernels)
        changes = {
            "grid": replace(problem.grid, sram_bytes=room, outside=(), sram_bytes_per_s=9.0),
            "held_bytes": nothing, "setup_bytes": nothing, "resident_bytes": held,
            "spare_dram_bytes": room, "dram_shares": repeats,
        }  # fmt: skip
    if kind == "three":
        far = MemoryTier(float(chance.integers(0, 400)), float(chance.choice([0.5, 1.0, 6.0])))
        changes = {
            "grid": replace(problem.grid, outside=(*problem.grid.outside, far)),
            "weight_bytes": held * repeats,
            "spare_dram_bytes": float(chance.integers(-60, 200)),
            "dram_shares": float(chance.choice([1.0, repeats])),
        }
    objective = chance.choice(["latency", "stream", "endless"])
    changes |= {
        "for_latency": objective == "latency",
        "num_passes": int(chance.integers(1, 40)) if objective == "stream" else None,
        "num_stages": int(chance.integers(1, 4)),
        "send_s": float(chance.choice([0.0, 10.0, 300.0])),
    }
    return replace(problem, **changes)


def tiled_problem(seed: int, num_kernels: int, num_tiles: int) -> FusionProblem:
    """Return a problem whose partitions have one of several tiles each.

    Other tiles have other buffers and shapes, and other tensors are needed whole.
    """
    chance = np.random.default_rng([seed, 11])
    problem = replace(tiered_problem(seed, num_kernels), tile=4)
    tensors, others = problem.tensors, []
    for tile in range(1, num_tiles):
        parts = int(chance.choice([1, 2, 8, 16]))
        factor = float(chance.choice([0.25, 0.5, 2.0, 4.0]))
        shapes = [
            TileShape(
                int(chance.integers(1, 12)), int(chance.integers(1, 6)), int(chance.integers(1, 8)),
                Unit.MATRIX if chance.random() < 0.5 else Unit.VECTOR,
            )
            for _ in range(num_kernels)
        ]  # fmt: skip
        buffers = replace(
            tensors,
            inside_bytes=factor * tensors.inside_bytes,
            written_bytes=factor * tensors.written_bytes,
            read_bytes=factor * tensors.read_bytes,
        )
        others.append(
            replace(
                problem, tile=4 + tile, tensors=buffers, num_tiles=parts,
                choices=tuple(core_choices(shape, GRID) for shape in shapes),
                waits=problem.reads & (chance.random(problem.reads.shape) < 0.3),
            )
        )  # fmt: skip
    return replace(problem, other_tiles=tuple(others))


@dataclass(frozen=True)
class SetPrice:
    """The price of one set, worked out by hand."""

    fits: bool
    busy_s: float
    fill_s: float
    setup_s: float
    crossing_bytes: float
    inside: frozenset[int]
    dram_s: float
    rounds: int
    sram_bytes: float
    held_bytes: float


def price_by_hand(problem: FusionProblem, members: frozenset[int]) -> SetPrice:
    """Return the price of a set, every division of the cores tried."""
    sram = moved = crossing = 0.0
    read_bytes = 0.0
    inside = set()
    t = problem.tensors
    for number, writer in enumerate(t.writer.tolist()):
        readers = t.readers[number].tolist()
        here = [slot for slot, reader in enumerate(readers) if reader in members]
        size = float(t.sequence_bytes[number])
        if writer in members:
            sram += max((float(t.inside_bytes[number, slot]) for slot in here), default=0.0)
            if len(here) < len(readers):
                sram += float(t.written_bytes[number])
                moved, crossing = moved + size, crossing + size
            else:
                inside.add(number)
        elif here:
            sram += max(float(t.read_bytes[number, slot]) for slot in here)
            read_bytes += size
    held = float(sum(problem.held_bytes[k] for k in members))
    parts = 1
    if len(members) == 1:
        while held / parts + sram > problem.grid.sram_bytes and parts < 1000:
            parts += 1
    moved += sum(float(problem.looked_up_bytes[k]) for k in members)
    moved += read_bytes * (parts if problem.rules.rereads else 1)
    fits = sram + np.ceil(held / parts) <= problem.grid.sram_bytes
    cycles = least_cycles_by_hand(problem, members)
    tiles = problem.num_tiles
    busy = max(
        tiles * cycles / problem.grid.frequency_hz,
        moved / problem.grid.dram_bytes_per_s,
        float(sum(problem.network_s[k] for k in members)),
    )
    row = _row(problem, members) if problem.rules.counts_fill else 1
    return SetPrice(
        bool(fits and np.isfinite(cycles)), busy, (row - 1) * busy / tiles,
        sum(float(problem.setup_bytes[k]) for k in members) / problem.grid.dram_bytes_per_s,
        crossing + read_bytes, frozenset(inside), moved / problem.grid.dram_bytes_per_s,
        _rounds(problem, members), float(sram + np.ceil(held / parts)), held,
    )  # fmt: skip


def least_cycles_by_hand(problem: FusionProblem, members: frozenset[int]) -> float:
    """Return the cycles of the best division of the cores, by trying all."""
    choices = [list(zip(*problem.choices[k], strict=True)) for k in sorted(members)]
    return min(
        (
            max(cycles for _, cycles in chosen)
            for chosen in product(*choices)
            if sum(cores for cores, _ in chosen) <= problem.grid.num_cores
        ),
        default=np.inf,
    )


def _row(problem: FusionProblem, members: frozenset[int]) -> int:
    longest: dict[int, int] = {}
    for k in sorted(members):
        before = [longest[j] for j in longest if problem.reads[k, j]]
        longest[k] = 1 + max(before, default=0)
    return max(longest.values())


def _rounds(problem: FusionProblem, members: frozenset[int]) -> int:
    """Return the rounds of one sequence alone: one more for each whole tensor on some path."""
    found: dict[int, int] = {}
    for k in sorted(members):
        before = [found[j] + bool(problem.waits[k, j]) for j in found if problem.reads[k, j]]
        found[k] = max(before, default=1)
    return max(found.values())


def chains(problem: FusionProblem) -> list[list[frozenset[int]]]:
    """Return every way to cut a problem into partitions that run one after the other."""

    def after(done: frozenset[int]) -> list[list[frozenset[int]]]:
        left = [k for k in range(problem.num_kernels) if k not in done]
        if not left:
            return [[]]
        found = []
        for size in range(1, len(left) + 1):
            for chosen in combinations(left, size):
                part = frozenset(chosen)
                now = done | part
                is_closed = all(
                    j in now for k in part for j in np.flatnonzero(problem.needs[k]).tolist()
                )
                if is_closed and len({int(problem.phase[k]) for k in part}) == 1:
                    found += [[part, *rest] for rest in after(now)]
        return found

    return after(frozenset())


def best_by_hand(problem: FusionProblem) -> float:
    """Return the seconds of the best chain, in the best tiles; infinite where none fits."""
    known: dict[frozenset[int], list[SetPrice]] = {}
    best = np.inf
    for chain in chains(problem):
        for part in chain:
            if part not in known:
                priced = (price_by_hand(tile, part) for tile in problem.tiles)
                known[part] = [price for price in priced if price.fits]
        for prices in product(*(known[part] for part in chain)):
            best = min(best, _chain_s(problem, chain, prices))
    return best


def _chain_s(problem, chain, prices):
    if problem.rules is OWN:
        return min(_stream_s(problem, chain, prices, size) for size in sizes_by_hand(problem))
    held = sum(price.crossing_bytes for price in prices)
    best = np.inf
    room = int(problem.spare_dram_bytes // max(held, 1.0))
    for low, high in problem.tried_micro_batches:
        size = min(room, high)
        if size >= low:
            seconds = sum(
                price.busy_s + price.fill_s / high + price.setup_s / size for price in prices
            )
            best = min(best, max(seconds, problem.send_s))
    return best


def sizes_by_hand(problem: FusionProblem) -> list[int]:
    """Return the micro-batches that may be used."""
    if problem.for_latency:
        return [1]
    if problem.micro_batches:
        return list(problem.micro_batches)
    powers = [1, 2, 4, 8, 16, 32, 64]
    total = problem.num_passes
    if total is None:
        return powers
    # the even parts of a stream in as many rounds as a power of two needs
    return sorted({int(np.ceil(total / np.ceil(total / power))) for power in powers})


def _stream_s(problem, chain, prices, size):
    """Return the seconds of a sequence of a micro-batch on all memories; infinite: no fit."""
    grid, tiers = problem.grid, problem.grid.outside
    alive = _alive_bytes(problem, chain, prices)
    byte_s = 1.0 / grid.dram_bytes_per_s
    if not tiers:  # tensors share the SRAM
        for price, num_bytes in zip(prices, alive, strict=True):
            if price.sram_bytes + problem.dram_shares * size * num_bytes > grid.sram_bytes:
                return np.inf
    else:
        beyond = (size * max(alive) - problem.spare_dram_bytes) * problem.dram_shares
        room = sum(tier.num_bytes for tier in tiers[1:])
        if beyond > min(room, problem.weight_bytes) + 1e-9:
            return np.inf
        if beyond > 0.0:
            share = beyond / problem.weight_bytes
            byte_s = max(byte_s, share / tiers[1].bytes_per_s)
    now = dram_free = 0.0  # when the last partition ended; when the next weights began to load
    for price in prices:
        begin = now
        start = max(now, dram_free + price.held_bytes * byte_s)
        run = (price.rounds if problem.for_latency else 1) * price.busy_s * size + price.fill_s
        now = max(start + run, begin + grid.launch_s)
        weights_s = (grid.sram_bytes - price.sram_bytes) * byte_s
        dram_free = max(now - weights_s, start + price.dram_s * size)
    seconds = now / size
    if problem.for_latency:
        return seconds + problem.send_s
    total, ramp = problem.num_passes, 1.0
    if total is not None:
        ramp = (np.ceil(total / size) + problem.num_stages - 1) * size / total
    return ramp * max(seconds, problem.send_s)


def _alive_bytes(problem, chain, prices):
    """Return the bytes that are written and not yet read by all, for each partition."""
    t, found, done = problem.tensors, [], set()
    for part, price in zip(chain, prices, strict=True):
        now = done | part
        alive = 0.0
        for number, writer in enumerate(t.writer.tolist()):
            is_read = all(reader in done for reader in t.readers[number].tolist())
            if writer in now and not is_read and number not in price.inside:
                alive += float(t.sequence_bytes[number])
        done = now
        found.append(alive)
    return found
