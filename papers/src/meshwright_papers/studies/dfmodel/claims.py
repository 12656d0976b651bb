"""What DFModel states, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log

from meshwright_papers.studies.claims import Claim, Verdict, judged_gain
from meshwright_papers.studies.dfmodel.eight_chips import Mapping
from meshwright_papers.studies.dfmodel.megatron import Prediction
from meshwright_papers.studies.dfmodel.trillion import Found

PUBLISHED = "seed"
LIMITS = ((60.0, "a minute"), (1200.0, "20 minutes"))
FASTER, CHEAPER, VENDOR, BY_KERNEL, ABOVE, MINUTES = 1.52, 1.59, 1.52, 6.13, 1.10, 20.0


def mapping_claims(mappings: Sequence[Mapping]) -> list[Claim]:
    """Return the verdicts on eight SN10."""
    ours, rest = mappings[0], mappings[1:]
    vendor = {m.tile: ours.samples_per_s / m.samples_per_s for m in rest if m.name == "vendor"}
    kernels = {m.tp: ours.samples_per_s / m.samples_per_s for m in rest if m.name != "vendor"}
    least = min(kernels.values())
    tiles = ", ".join(f"{ratio:.2f} at {tile}" for tile, ratio in vendor.items())
    return [
        Claim("8 x SN10", "gain over kernel by kernel", f"{BY_KERNEL}x", PUBLISHED,
              f"{kernels[8]:.2f}x at TP8, {least:.2f}x over the best degrees",
              judged_gain(kernels[8], BY_KERNEL),
              "the published baseline runs at TP8; kernel by kernel at TP1 PP8 sends nothing "
              "inside a layer and is twice as fast"),
        Claim("8 x SN10", "gain over the vendor's mapping", f"{VENDOR}x", PUBLISHED,
              f"{vendor[32]:.2f}x at its tile of 32 ({tiles})", judged_gain(vendor[32], VENDOR),
              "the printed figure is that of a tile of 256 for the vendor"),
    ]  # fmt: skip


def training_claims(gains: dict[str, float], cheaper: dict[str, float]) -> list[Claim]:
    """Return the verdicts on dataflow over kernel by kernel in training, by memory."""
    mean, mean_price = _geometric(gains.values()), _geometric(cheaper.values())
    named = ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    why = ("the slower the memory, the more fusion saves; which memories the published mean is "
           "over is not stated")  # fmt: skip
    return [
        Claim("LLM training", "dataflow over kernel by kernel, performance", f"{FASTER}x",
              PUBLISHED, f"{mean:.2f}x as the geometric mean over memories ({named})",
              judged_gain(mean, FASTER), why),
        Claim("LLM training", "the same for each unit of price", f"{CHEAPER}x", PUBLISHED,
              f"{mean_price:.2f}x", judged_gain(mean_price, CHEAPER),
              "memory and network alone have a price there, and each kind of mapping chooses the "
              "network that gives it most for its price"),
        Claim("LLM training", "the same for each watt", "1.6x", PUBLISHED, "not rebuilt",
              Verdict.NOT_PUBLISHED, "the coefficients of the power model are not public"),
    ]  # fmt: skip


def search_claims(found: Found) -> list[Claim]:
    """Return the verdict on the time of the search."""
    case = found.case
    return [
        Claim("search", "1T parameters on 1,024 chips", f"within {MINUTES:.0f} minutes on 64 CPUs",
              PUBLISHED,
              f"{_within(found.search_s)} on one core, proven: {found.num_cases} cases, "
              f"{found.num_fused} fused; {case.network} tp{case.tp} pp{case.pp} dp{case.dp}",
              Verdict.AGREES if found.search_s < MINUTES * 60 else Verdict.DIFFERS,
              "order ideals make the mapping of a chip a shortest path"),
        Claim("search", "size of the space", "O(10^295)", "second-hand", "not counted",
              Verdict.NOT_PUBLISHED, "what is counted is not stated"),
    ]  # fmt: skip


def prediction_claims(predictions: Sequence[Prediction]) -> list[Claim]:
    """Return the verdicts on predicted over measured performance."""
    mean = sum(entry.over_measured for entry in predictions) / len(predictions)
    low = min(entry.over_measured for entry in predictions)
    high = max(entry.over_measured for entry in predictions)
    return [
        Claim("validation", "predicted over measured, on average", f"{ABOVE:.2f}", PUBLISHED,
              f"{mean:.2f} in samples/s ({low:.2f} to {high:.2f}) over five runs of Megatron-LM",
              judged_gain(mean, ABOVE),
              "no recomputation, no latency, memory and links at their full rate: a bound of what "
              "could be, not a prediction; the published mean is over other cases as well"),
        Claim("validation", "distance from Calculon and Rail-Only", "3.1 to 4.1 %", PUBLISHED,
              "not rebuilt", Verdict.NOT_PUBLISHED, "their points are not public"),
    ]  # fmt: skip


def _within(seconds: float) -> str:
    """Return how long a search took, as far as it is the same on every run."""
    return next((f"within {name}" for limit, name in LIMITS if seconds < limit), "longer")


def _geometric(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    listed = list(values)
    return exp(sum(map(log, listed)) / len(listed))
