"""Words for values and names: parts of a price, counts, shares, money and energy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.base.units import format_number

if TYPE_CHECKING:
    from meshwright.spec.system import ChipSpec

JOULES_PER_KWH = 3.6e6


def named_type(name: str, chip: ChipSpec) -> str:
    """Return the name of a type of numbers, with the reason where a chip has no bf16."""
    return f"{name} ({chip.name} has no bf16)" if name == chip.word != "bf16" else name


_FIELD_WORDS = {
    "tp_comm": "TP communication", "pp_comm": "PP communication", "cp_comm": "CP communication",
    "ep_comm": "EP communication", "dp_comm": "DP communication", "tatp_comm": "TATP streams",
    "hbm": "HBM", "dram": "DRAM", "exposed_dram": "exposed DRAM", "d2d": "die-to-die links",
    "kv_cache": "KV cache",
}  # fmt: skip


def words(name: str) -> str:
    """Return the name of a part without its unit: ``tp_comm_s`` is ``TP communication``."""
    for suffix in ("_bytes", "_s", "_j"):
        name = name.removesuffix(suffix)
    return _FIELD_WORDS.get(name, name.replace("_", " "))


def counted(number: float, thing: str, things: str = "") -> str:
    """Return a number of things in words: ``1 stage``, ``2 stages``, ``2 passes``."""
    return f"{number:,.0f} {thing if number == 1 else things or thing + 's'}"


def per_million_tokens(usd: float | None, joules: float | None) -> str:
    """Return money and energy for a million tokens; unknown where unknown."""
    known = [
        *([] if usd is None else [f"{usd:.3g} USD"]),
        *([] if joules is None else [f"{joules / JOULES_PER_KWH:.3g} kWh"]),
    ]
    unknown = [name for name, value in (("price", usd), ("energy", joules)) if value is None]
    parts = [f"{' and '.join(known)} per million tokens"] if known else []
    return "; ".join([*parts, *([f"{' and '.join(unknown)} unknown"] if unknown else [])])


def rent_rate(chip: ChipSpec, num_devices: int) -> str:
    """Return the price of a device hour, and its source; empty where unknown."""
    rent = chip.rent_usd_per_hour
    if rent is None:
        return ""
    origin = chip.provenance.get("rent")
    is_assumed = origin is not None and origin.kind == "assumed"
    source = chip.sources.get(origin.source or "") if origin and not is_assumed else None
    why = source.title if source else origin.note if origin else "no source stated"
    each = f"{rent:.4g} USD/h a device"
    every = ""
    if num_devices > 1:
        every = f", {format_number(rent * num_devices, digits=4)} USD/h for {num_devices:,}"
    span = ""
    if origin and origin.low is not None and origin.high is not None:
        word = "somewhere" if is_assumed else "listed"
        span = f"; {word} from {origin.low:.4g} to {origin.high:.4g}"
    return f"{each}{every} ({'assumed: ' if is_assumed else ''}{why}{span})"


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share in per cent; a dash where it is not known."""
    if value is None:
        return "-"
    return f"{value:+.1%}" if sign else f"{value:.1%}"
