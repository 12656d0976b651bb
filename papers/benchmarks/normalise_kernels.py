"""Published kernel times as the package stores them: a part of the rows, drawn by their shapes.

    python papers/benchmarks/normalise_kernels.py FOLDER

``FOLDER`` holds tables (``gemm.csv.gz``, ...) with the columns that ``docs/results/kernels.md``
lists. Of each chip and variant so many shapes are kept, the first ones in the order of a hash of
the shape, so that chips share shapes; a quarter of all shapes, by another hash, is held back from
fits. No row is chosen by its time. Left out are rows that mean something else: experts spread over
devices on an A100, where the source does not divide their work, and collectives over several nodes
or over pairs of linked devices.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshwright_papers.kernels.tables import FOLDER, HELD_BACK

Row = Mapping[str, str]

MOST: Mapping[str, int] = {
    "gemm": 240, "attention": 240, "latent": 60, "mla_bmm": 60, "moe": 150, "collectives": 60,
    "moe_dispatch": 100, "elementwise": 48,
}  # fmt: skip
"""Shapes of a chip and variant that are fitted; a third as many are held back."""
TIMES = ("latency_us", "dispatch_us", "combine_us")
SHAPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gemm": (("dtype",), ("m", "n", "k")),
    "attention": (
        ("kv_dtype", "phase"),
        ("batch", "seq_len_q", "seq_len_kv", "heads", "kv_heads", "head_dim", "window_tokens"),
    ),
    "latent": (
        ("scope", "kv_dtype", "projection_dtype", "phase"),
        ("batch", "seq_len_q", "seq_len_kv", "local_heads"),
    ),
    "mla_bmm": (("op", "dtype"), ("tokens", "local_heads")),
    "moe": (
        ("dtype",),
        ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "distribution", "gated"),
    ),
    "collectives": (
        ("library", "mode", "op"), ("num_gpus", "devices_per_node", "message_bytes"),
    ),
    "moe_dispatch": (("mode",), ("nodes", "hidden", "tokens", "topk", "dispatch_sms")),
    "elementwise": (("kernel",), ("tokens", "width")),
}  # fmt: skip
"""Of each table: what makes a variant, and what makes a shape."""
FILES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention_context", "attention_generation"),
    "latent": ("mla_context", "mla_generation"),
}
PLAIN_EXPERTS = ("1024", "2688")
"""Hidden sizes of the source's models whose experts have no gate."""
PLAIN_WIDTHS = ("5120",)
"""Widths of experts of the same family of models."""


def rows_of(folder: Path, table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table, with what its names say stated."""
    for name in FILES.get(table, (table,)):
        with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if "seq_len_q" in row:
                    is_prompt = row["seq_len_q"] == row["seq_len_kv"]
                    row["phase"] = "context" if is_prompt else "decode"
                if "distribution" in row:
                    plain = row["hidden"] in PLAIN_EXPERTS or row["inter"] in PLAIN_WIDTHS
                    row["gated"] = str(int(not plain))
                if is_meant(row, table):
                    yield row


def is_held_back(shape: str) -> bool:
    """Return whether a shape belongs to the quarter that no fit sees, on any chip."""
    return zlib.crc32(f"17|{shape}".encode()) % 4 == 0


def is_meant(row: Row, table: str) -> bool:
    """Return whether a row is what the table's columns say."""
    if table == "moe":
        return row["chip"] != "a100_sxm" or row["ep"] == "1"
    if table == "collectives":
        is_known = row["library"] in ("nccl", "oneccl") or row["library"].endswith("_custom")
        is_known = is_known and "pairwise" not in row["system"]
        return is_known and bool(row["num_gpus"]) and row["num_gpus"] == row["devices_per_node"]
    return table != "elementwise" or row["source"] == "vidur"


def kept(folder: Path, table: str) -> Iterator[dict[str, str]]:
    """Yield the rows that are kept, in the order of their chips, variants and shapes."""
    variants, shape = SHAPES[table]
    groups: dict[tuple[str, ...], dict[tuple[int, int, str], dict[str, str]]] = defaultdict(dict)
    for row in rows_of(folder, table):
        text = "|".join(row[name] for name in shape)
        held = int(is_held_back(text))
        place = zlib.crc32(f"draw|{text}".encode())
        group = (row["chip"], *(row[name] for name in variants))
        groups[group].setdefault((held, place, text), row | {HELD_BACK: str(held)})
    for group in sorted(groups):
        found = groups[group]
        for held, most in ((0, MOST[table]), (1, MOST[table] // 3)):
            for key in sorted(key for key in found if key[0] == held)[:most]:
                yield found[key]


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    FOLDER.mkdir(parents=True, exist_ok=True)
    for table, (variants, shape) in SHAPES.items():
        rows = list(kept(folder, table))
        times = [name for name in TIMES if name in rows[0]]
        names = ["chip", *(name for name in variants if name != "phase"), *shape, *times]
        text = io.StringIO()
        writer = csv.DictWriter(
            text, [*names, HELD_BACK, "source"], extrasaction="ignore", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
        content = gzip.compress(text.getvalue().encode(), 9, mtime=0)
        (FOLDER / f"{table}.csv.gz").write_bytes(content)
        print(f"{table}: {len(rows)} rows, {len(content)} bytes")


if __name__ == "__main__":
    main()
