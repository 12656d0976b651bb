"""A table of four layers kept in the caches of 16 H100: the conditions for it to hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.calibration import UNCALIBRATED, load_calibration
from meshwright.catalog.footprint_files import FootprintFile, LayerFootprint
from meshwright.catalog.systems import load_system
from meshwright.collectives.group import make_group
from meshwright.collectives.registry import affine_candidates
from meshwright.cost.communication import level_efficiencies
from meshwright.cost.operator import DeviceRates, device_rates
from meshwright.serve.operators import product_compute_s
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import Precision, SoftwareStack
from meshwright.sram.partition import Cut, partition_measured
from meshwright.sram.question import room_bytes
from meshwright_papers.studies.drawing import Drawing
from meshwright_papers.studies.study import (
    AGREE_WITHIN,
    Claim,
    StudyResult,
    Table,
    Verdict,
    claim_lines,
    judged,
    judged_gain,
    studies,
)

SYSTEM, DEVICES, LAYERS, BATCH, EXPERTS = "16xH100", 16, 4, 1024, 8
WORD_BYTES = 2.0
HIDDEN_SIZES = (1024, 2048, 4096, 8192)
PASSES = (64, BATCH)
"""Tokens of one pass: the batch in 16 groups, and the whole of it."""
FIGURE = "table of results"


CHART = Drawing(
    "What do four layers gain that are held in L2 rather than in HBM?",
    "tokens/s from L2 over those from HBM, 16 H100, by the tokens of a pass",
    "lines", ("gain",), "hidden", colour="pass_tokens", panels="kind", fits={"gain": "fits"},
    misfit="does not fit into L2",
)  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """One row of the table."""

    model: str
    method: str
    tokens_per_s: float
    token_ms: float


PRINTED = (
    Printed("dense", "TP8 PP2", 12_800, 0.078),
    Printed("dense", "layer-wise", 15_360, 0.065),
    Printed("MoE", "TP8 PP2", 10_200, 0.098),
    Printed("MoE", "layer-wise", 13_400, 0.075),
)
PRINTED_GAINS = {"dense": (0.20, 0.17), "MoE": (0.31, 0.23)}
"""Gain of tokens per second and loss of time per token, as the text states them."""


@dataclass(frozen=True)
class Kind:
    """A square layer, or experts that each are one; a token visits ``top_k`` of them."""

    name: str
    num_experts: int = 1
    top_k: int = 1

    def held_bytes(self, hidden: float, tokens: float) -> float:
        """Return weights, and inputs and outputs of a pass [bytes]."""
        return WORD_BYTES * (self.num_experts * hidden**2 + 2 * tokens * hidden)

    def largest_hidden(self, tokens: float, room: float) -> int:
        """Return the largest size of a layer that fits a room: a root of the line above."""
        weights = self.num_experts
        root = math.sqrt(tokens**2 + weights * room / WORD_BYTES)
        return int((root - tokens) / weights)

    def layer_s(self, hidden: float, tokens: float, rates: DeviceRates) -> float:
        """Return the seconds of a layer: arithmetic or traffic, the slower one [s]."""
        rows = max(tokens * self.top_k / self.num_experts, 1.0)
        compute_s = product_compute_s(
            self.num_experts, rows, hidden, hidden, rates.matmul_flops_per_s, rates
        )
        words = self.num_experts * (hidden**2 + 2 * rows * hidden)
        return max(float(compute_s), float(WORD_BYTES * words / rates.memory_bytes_per_s))

    def tokens_per_s(self, hidden: float, tokens: float, rates: DeviceRates) -> float:
        """Return the rate of 16 devices, each with one of four layers, without sends [tokens/s]."""
        return DEVICES / LAYERS * tokens / self.layer_s(hidden, tokens, rates)


DENSE = Kind("dense")
MOE = (Kind("MoE top-1", EXPERTS, 1), Kind("MoE top-2", EXPERTS, 2))


@cache
def rates_at(level: int) -> DeviceRates:
    """Return the rates of an H100 that reads from its L2 (0) or its HBM (1)."""
    chip = load_system(SYSTEM).chip
    held = chip.model_copy(update={"memories": chip.memories[: level + 1]})
    constants = load_calibration(chip.family, "uncalibrated")
    return device_rates(held, Precision(), SoftwareStack(cuda_graphs=True), constants)


@cache
def cache_room_bytes() -> float:
    """Return the part of the L2 that software can keep resident [bytes]."""
    chip = load_system(SYSTEM).chip
    return room_bytes(chip.memories[0], load_calibration(chip.family, "uncalibrated"))


def gain(kind: Kind, hidden: float, tokens: float) -> float:
    """Return the speed from L2 over that from HBM."""
    near, far = (kind.layer_s(hidden, tokens, rates_at(level)) for level in (0, 1))
    return far / near


def ridge(level: int) -> float:
    """Return the tokens at which arithmetic takes as long as reading 16-bit weights: F / B."""
    rates = rates_at(level)
    return float(rates.matmul_flops_per_s / rates.memory_bytes_per_s * WORD_BYTES / 2)


def longest_pass(kind: Kind, least_gain: float) -> int:
    """Return the most tokens of a pass that still gains so much, at the largest size that fits."""
    fitting = [
        tokens
        for tokens in range(16, 16 * BATCH, 16)
        if gain(kind, kind.largest_hidden(tokens, cache_room_bytes()), tokens) >= least_gain
    ]
    return max(fitting, default=0)


@studies.register("layers-in-sram")
class LayersInSram:
    """Arithmetic of the table, the roofline of layers that fit, the cut, and missing inputs."""

    title = "a table of four layers in the caches of 16 H100: what it takes to hold"
    source = "proposal of a layer-wise deployment in SRAM or L2, section Experiments"

    @staticmethod
    def run() -> StudyResult:
        """Check each number of the table against the limits of the hardware."""
        columns = ("kind", "hidden", "pass_tokens", "held", "fits", "l2_tokens_per_s",
                   "hbm_tokens_per_s", "gain")  # fmt: skip
        rows = tuple(_row(kind, hidden, tokens) for kind in (DENSE, *MOE)
                     for tokens in PASSES for hidden in HIDDEN_SIZES)  # fmt: skip
        table = Table("layers_in_sram", columns, rows, CHART)
        claims = (_readings_claim(), *_arithmetic_claims(), *_level_claims(),
                  *_mechanism_claims(), _cut_claim(), _missing_claim())  # fmt: skip
        head = f"{'kind':<12}{'hidden':>7}{'pass':>6}{'held':>11}{'fits':>6}"
        lines = [head + f"{'tokens/s L2':>14}{'HBM':>12}{'gain':>7}"]
        lines += [
            f"{kind:<12}{hidden:>7}{tokens:>6}{held:>11}{fits:>6}{near:>14,.3g}{far:>12,.3g}"
            f"{ratio:>7.2f}"
            for kind, hidden, tokens, held, fits, near, far, ratio in rows
        ]
        return StudyResult(
            lines=(*lines, "", *claim_lines(claims)),
            data={"rows": table.records},
            tables=(table,),
            claims=claims,
            assumptions="square layers (an MLP holds more), 16 bit, sends and launches left out "
            "(both would lower our figures), three quarters of L2 resident; roofline of one pass, "
            "closed form, uncalibrated",
        )


def _readings_claim() -> Claim:
    """Return how many readings of what the table leaves open reproduce it, as a claim."""
    printed = {DENSE: PRINTED[:2], **dict.fromkeys(MOE, PRINTED[2:])}
    tried = [(kind, hidden, tokens) for kind in printed for tokens in PASSES
             for hidden in HIDDEN_SIZES]  # fmt: skip
    fitting = [one for one in tried if one[0].held_bytes(*one[1:]) <= cache_room_bytes()]
    over = [
        tuple(kind.tokens_per_s(hidden, tokens, rates_at(level)) / row.tokens_per_s
              for level, row in zip((1, 0), printed[kind], strict=True))
        for kind, hidden, tokens in fitting
    ]  # fmt: skip
    same = [pair for pair in over if all(abs(ratio - 1) <= AGREE_WITHIN for ratio in pair)]
    return Claim(
        FIGURE, "readings of kind, hidden size and tokens a pass that give both rows",
        "the table", "seed",
        f"{len(same)} of {len(tried)}; {len(fitting)} fit L2 at all, and are at least "
        f"{min(map(min, over)):,.0f} times as fast",
        Verdict.AGREES if same else Verdict.DIFFERS,
        "layers that fit a cache are small: no limit of the hardware holds them to such speeds",
    )  # fmt: skip


def _row(kind: Kind, hidden: int, tokens: int) -> tuple[object, ...]:
    """Return a row of the table of hardware limits."""
    held = kind.held_bytes(hidden, tokens)
    rates = [kind.tokens_per_s(hidden, tokens, rates_at(level)) for level in (0, 1)]
    fits = "yes" if held <= cache_room_bytes() else "no"
    return (kind.name, hidden, tokens, format_bytes(held), fits, *rates, rates[0] / rates[1])


def _arithmetic_claims() -> list[Claim]:
    """Return the claims on the agreement of the numbers of the table, and their meaning."""
    is_inverse = all(round(1e3 / row.tokens_per_s, 3) == row.token_ms for row in PRINTED)
    users = ", ".join(f"{1e3 * BATCH / row.tokens_per_s:.1f}" for row in PRINTED)
    claims = [
        Claim(FIGURE, "time per output token, from tokens per second",
              ", ".join(f"{row.token_ms:g} ms" for row in PRINTED), "seed",
              "1 / tokens per second, to the last figure" if is_inverse else "not the inverse",
              Verdict.AGREES if is_inverse else Verdict.DIFFERS,
              "the columns are not each other's inverse"),
        Claim(FIGURE, "time that a user waits for a token", "0.065 to 0.098 ms", "seed",
              f"{users} ms with {BATCH} in flight", Verdict.DIFFERS,
              "tokens per second times the time per token of a user are the sequences in flight "
              "(Little's law); the table divides the time of the system by all of them"),
    ]  # fmt: skip
    for number, model in enumerate(PRINTED_GAINS):
        before, after = PRINTED[2 * number : 2 * number + 2]
        found = (after.tokens_per_s / before.tokens_per_s - 1, 1 - after.token_ms / before.token_ms)
        stated = PRINTED_GAINS[model]
        agrees = all(judged(ours, text) is Verdict.AGREES
                     for ours, text in zip(found, stated, strict=True))  # fmt: skip
        claims.append(
            Claim(FIGURE, f"{model}: more tokens per second, less time per token",
                  f"{stated[0]:.0%}, {stated[1]:.0%}", "seed", f"{found[0]:.1%}, {found[1]:.1%}",
                  Verdict.AGREES if agrees else Verdict.DIFFERS,
                  f"more than {AGREE_WITHIN:.0%} from the rows of the table")
        )  # fmt: skip
    return claims


def _level_claims() -> list[Claim]:
    """Return the throughput of layers that fit, and the size that is as slow as the table."""
    tokens = PASSES[0]
    hidden = DENSE.largest_hidden(tokens, cache_room_bytes())
    bound = DENSE.tokens_per_s(hidden, tokens, rates_at(0))
    peak = load_system(SYSTEM).chip.matmul_flops_per_s["bf16"]
    used = PRINTED[1].tokens_per_s * LAYERS * 2 * hidden**2 / (DEVICES * peak)
    rate = DEVICES * rates_at(0).matmul_flops_per_s
    as_slow = math.sqrt(rate / (2 * LAYERS * PRINTED[0].tokens_per_s))
    weights = LAYERS * DENSE.held_bytes(as_slow, 0)
    both = "the two statements exclude each other at every hidden size"
    return [
        Claim(FIGURE, "dense, layer-wise: tokens per second of layers that fit L2",
              f"{PRINTED[1].tokens_per_s:,.0f}", "seed",
              f"{bound:.2g} at hidden {hidden}, the largest that fits; the table is "
              f"{used:.2%} of the peak of {DEVICES} devices", Verdict.DIFFERS, both),
        Claim(FIGURE, "dense: the hidden size that arithmetic holds to the table",
              "fits L2", "seed", f"{as_slow:,.0f}, whose weights are {format_bytes(weights)}",
              Verdict.DIFFERS, both),
    ]  # fmt: skip


def _mechanism_claims() -> list[Claim]:
    """Return the gain of residence in L2, and the possible gain of less communication."""
    room = cache_room_bytes()
    dense = gain(DENSE, DENSE.largest_hidden(BATCH, room), BATCH)
    needed = PRINTED[1].tokens_per_s / PRINTED[0].tokens_per_s
    most = longest_pass(DENSE, needed)
    gains = [gain(kind, kind.largest_hidden(BATCH, room), BATCH) for kind in MOE]
    moe = PRINTED[3].tokens_per_s / PRINTED[2].tokens_per_s
    moe_most = longest_pass(MOE[0], moe)
    step_s = BATCH / PRINTED[0].tokens_per_s
    reduce_s = LAYERS * _all_reduce_s(WORD_BYTES * BATCH * HIDDEN_SIZES[-1])
    return [
        Claim(FIGURE, f"dense: speed from L2 over HBM, {BATCH} tokens a pass", f"{needed:.2f}x",
              "seed", f"{dense:.2f}x; {needed:.2f}x needs passes of at most {most} tokens: "
              f"arithmetic takes over at {ridge(1):.0f} from HBM, at {ridge(0):.0f} from L2",
              judged_gain(dense, needed),
              "with as many tokens a pass arithmetic is the limit, not the reading of weights"),
        Claim(FIGURE, f"MoE: speed from L2 over HBM, {BATCH} tokens a pass", f"{moe:.2f}x", "seed",
              f"top-1 {gains[0]:.2f}x, top-2 {gains[1]:.2f}x; top-1 gains {moe:.2f}x in passes of "
              f"at most {moe_most} tokens", judged_gain(gains[0], moe),
              f"the bound is {'above' if gains[0] > moe else 'below'} the claim: where {EXPERTS} "
              "experts fit one cache, each sees few tokens and reading its weights is the limit; "
              "sizes are missing"),
        Claim(FIGURE, "the baseline loses its time in collectives of tp", "yes", "seed",
              f"{format_seconds(reduce_s)} of all-reduces at hidden {HIDDEN_SIZES[-1]} in a step "
              f"of {format_seconds(step_s)}: {reduce_s / step_s:.1%}", Verdict.DIFFERS,
              "neither arithmetic, nor memory, nor network fill the step; an overhead of software "
              "that the text does not state would have to"),
    ]  # fmt: skip


def _all_reduce_s(num_bytes: float) -> float:
    """Return one all-reduce over the eight devices of a host [s]."""
    system = load_system(SYSTEM)
    constants = load_calibration(system.chip.family, "uncalibrated")
    factor = level_efficiencies(system, constants)[0]
    forms = affine_candidates(
        CollectiveKind.ALL_REDUCE, make_group(system.levels[:1], 1.0, 8.0, [factor])
    )
    return constants.collective_launch_s + min(float(a + b * num_bytes) for _, a, b in forms)


def _cut_claim() -> Claim:
    """Return the number of devices that the cut of four layers fills, as a claim."""
    room = cache_room_bytes()
    hidden = DENSE.largest_hidden(BATCH, room)
    layer = LayerFootprint(name="layer", repeat=LAYERS, weights_bytes=DENSE.held_bytes(hidden, 0),
                           activations_bytes=DENSE.held_bytes(hidden, BATCH)
                           - DENSE.held_bytes(hidden, 0))  # fmt: skip
    plan = partition_measured(
        FootprintFile(name="four", layers=(layer,)), Cut(), SYSTEM, calibration=UNCALIBRATED
    )
    stages = len(plan.stages)
    return Claim(
        FIGURE, f"devices that a contiguous cut of {LAYERS} layers fills", f"{DEVICES}", "seed",
        f"{stages}; {DEVICES - stages} idle, or {DEVICES // stages} replicas",
        judged(float(stages), float(DEVICES)),
        "a layer stands on one device, so there are as many stages as layers at most; replicas are "
        "not mentioned",
    )  # fmt: skip


def _missing_claim() -> Claim:
    """Return the inputs missing to rebuild the table, as a claim."""
    return Claim(
        FIGURE, "inputs from which the table could be rebuilt", "", "missing",
        "hidden and expert sizes, top-k, what a token is for dense layers, prefill or decode, "
        "context and cache, groups in flight, kernels, spread of the measurements",
        Verdict.NOT_PUBLISHED, "",
    )  # fmt: skip
