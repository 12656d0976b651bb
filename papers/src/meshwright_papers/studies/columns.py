"""Columns of studies in words and with their units; CSV keeps their names."""

from __future__ import annotations

from dataclasses import dataclass

SHARE, RATIO, SAVED = "share", "ratio", "saved"
"""Units of numbers without one: a share of one; a ratio; percent saved, drawn as the ratio that is
left."""


@dataclass(frozen=True)
class Column:
    """Content of a column in words, with its unit."""

    words: str
    unit: str = ""


COLUMNS = {
    "axes": Column("axes of more than one device"),
    "best_of_both": Column("best of both"),
    "by_kernel_samples_per_s": Column("kernel by kernel", "samples/s"),
    "closed_form_step_pct": Column("error of the closed form", "%"),
    "collective_share": Column("collectives, of the step", SHARE),
    "compute_w": Column("computation", "W"),
    "d2d_w": Column("links between dies", "W"),
    "dead_cores": Column("dead cores", SHARE),
    "dead_links": Column("dead links", SHARE),
    "degree": Column("degree of the stream", "dies"),
    "devices": Column("devices"),
    "energy_percent": Column("energy", "%"),
    "equal_rows": Column("equal shares of work", SHARE),
    "fastest": Column("fastest"),
    "form": Column("form of the stream"),
    "fsdp_smap_s": Column("FSDP", "s"),
    "fused_samples_per_s": Column("fused", "samples/s"),
    "gain": Column("tokens/s from L2 over those from HBM", RATIO),
    "gap": Column("step over its lower bound, less one", SHARE),
    "hbm_w": Column("HBM", "W"),
    "hidden": Column("hidden size"),
    "idle_w": Column("idle", "W"),
    "knee": Column("knee of the curve"),
    "mean_error_pct": Column("mean", "%"),
    "measured_samples_per_s": Column("measured", "samples/s"),
    "most_tokens_per_j": Column("most tokens/J"),
    "naive_mfu": Column("by number, one after the other", SHARE),
    "network_step_pct": Column("error of the network", "%"),
    "ours_over_published": Column("ours over published", RATIO),
    "over_ours": Column("step over that of meshwright", RATIO),
    "over_temp": Column("step over that of TEMP", RATIO),
    "overhead_w": Column("overhead", "W"),
    "p95_error_pct": Column("95th percentile", "%"),
    "pass_tokens": Column("tokens of a pass"),
    "peer_samples_per_s": Column("DFModel, as published", "samples/s"),
    "placed_mfu": Column("placed", SHARE),
    "power_percent": Column("power", "%"),
    "pp": Column("pipeline stages"),
    "published_saved_pct": Column("published", SAVED),
    "rebalanced": Column("work rebalanced", SHARE),
    "replicated_gib": Column("tensor parallel, tokens whole", "GiB"),
    "round_us": Column("a round of the stream", "µs"),
    "samples_per_s": Column("ours", "samples/s"),
    "sharded_gib": Column("state sharded too", "GiB"),
    "shown_saved_pct": Column("communication, ours over theirs", SAVED),
    "slower_by": Column("published mix slower than the best one by", SHARE),
    "speedup": Column("mean speedup over six baselines", RATIO),
    "split_gib": Column("tokens split (sequence parallel)", "GiB"),
    "streams_smap_s": Column("streams, not placed", "s"),
    "temp_s": Column("streams, placed", "s"),
    "throughput": Column("mean", SHARE),
    "throughput_if_connected": Column("mean, where no die is cut off", SHARE),
    "throughput_p5": Column("5th percentile of the maps", SHARE),
    "tile": Column("tokens of a tile"),
    "time_percent": Column("time", "%"),
    "tokens_per_s": Column("throughput", "tokens/s"),
    "wafer_megatron-3_s": Column("wafer, Megatron-3", "s"),
    "wafer_temp_s": Column("wafer, TEMP", "s"),
    "with_cp_ep_s": Column("with both", "s"),
    "with_cp_s": Column("with context parallelism", "s"),
    "with_ep_s": Column("with expert parallelism", "s"),
}
"""Words and units of the columns that are drawn; others are called by their names."""


def words_of(name: str) -> str:
    """Return the content of a column in words."""
    return COLUMNS[name].words if name in COLUMNS else name.replace("_", " ")


def unit_of(name: str) -> str:
    """Return the unit of a column."""
    return COLUMNS[name].unit if name in COLUMNS else ""
