"""Published measurements as the package stores them: words of sources become questions, once.

    python benchmarks/normalise_measurements.py
    python benchmarks/normalise_measurements.py RAW.json --onto training

The first form makes the tables of the package (``src/meshwright/calibration/data``) from the rows
of ``benchmarks/measurements``: questions with their measured answers. The second one first reads
the words of a raw file (``meshwright_papers.measurements``) and appends its rows to one table.

``RAW.json`` is an array of rows in the words of their source, or a raw table in which rows name
shared parts by their index (those that the tables were made from: ``git show
fcc2b49:src/meshwright/validation/data/training.json``, and ``inference.json``). Each row gets the
date of its software from the title of its source, and keeps the words that were read
(``reasons``). Of a file that says which rows are ``complete`` only those are taken, and of requests
those with a length.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.calibration import rows
from meshwright_papers.measurements.fields import SHARED, Row, table_rows
from meshwright_papers.measurements.questions import asked
from meshwright_papers.measurements.words import rows_of

FOLDER = Path(__file__).parent / "measurements"
READ = tuple(table for table in rows.TABLES if table != "traffic")
"""Tables of rows in the words of their source."""

TRAINING = ("sources", "models", "hardware", "plans")
SERVING = ("sources", "models", "hardware", "settings")
ARXIV = re.compile(r"\((\d\d)(0[1-9]|1[0-2])\.\d{5}\)")
DRAWN_LENGTHS = {"InferenceX dump": 0.8}
"""Benchmarks that draw the lengths of requests: --random-range-ratio of SemiAnalysis InferenceX,
benchmarks/benchmark_lib.sh."""
DATE = re.compile(r"(20\d\d)-?(0[1-9]|1[0-2])(?!\d)")
LTS = re.compile(r"golden_values_lts_dgx_?a100")
LTS_DATES = ("2024-01", "2025-09")
"""Months of the images on which Megatron-LM tests its LTS lane: PyTorch containers 24.01
(``Dockerfile.ci.lts``), then 25.09 (``docker/.ngc_version.lts``). Files of values name no image:
those of the second are taken to be the ones that leave out the time of the first step (49 or 99
values), or hold a resumed run alone (``_2nd``)."""
VERSION = re.compile(r"(\d\d\.\d\d) NeMo Container|NeMo (\d\d\.\d\d)|\((v\d+\.\d+)\)")
GIB_OVER_GB = 2.0**30 / 1e9
IN_GIB = {
    "doc/en/train_performance.md": "GB of this page are GiB: it serves 20 B parameters of 16 bits, "
    "40.2e9 bytes, in 39 GB (Web_demo)",
}
"""By path of a source whose "GB" raw rows read as 1e9 bytes: why they are GiB."""
_TPU = "training/trillium"
_MEGATRON = "tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp2_pp2"
STATED: Mapping[str, Mapping[str, Any]] = {
    f"{_TPU}/Llama3.1-70B-MaxText/v6e-32": {"optimizer": ("adam-bf16", "weight_dtype bfloat16")},
    **{
        f"{_TPU}/Gemma3-12B-MaxText/{slices}v6e-256": {"logit_tiles": (16, "num_vocab_tiling 16")}
        for slices in ("", "2x-", "4x-")
    },
    **{
        f"{_MEGATRON}{kind}_defer_embedding_wgrad_compute": {
            "deferred_logit_gradients": (2, "wgrad-deferral-limit 2")
        }
        for kind in ("", "_resume_torch_dist")
    },
}
"""By folder of a source: options of its launch file that raw rows leave out, as fields of the
software, each with the words of the file."""


def raw_rows(content: Any) -> list[dict[str, Any]]:
    """Return the rows of a raw file with their parts in place, dated."""
    if isinstance(content, Mapping):
        read = training_row if "plans" in content else serving_row
        content = [read(entry, content) for entry in content["rows"]]
    known = [dated(row) for row in content if row.get("complete", True)]
    return [row for row in known if "batch" not in row or row["input_len"] or row["output_len"]]


def training_row(entry: list[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the raw table of training."""
    name, group, task, *indices, own = entry
    source, model, hardware, plan = (
        table[part][index] for part, index in zip(TRAINING, indices, strict=True)
    )
    shared = {"source": source, "model": model, "hardware": hardware, "parallelism": plan}
    return {"id": name, "group": group, "task": task} | shared | own


def serving_row(entry: list[Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the raw table of serving."""
    name, group, *indices, batch, prompt, answer, measured = entry
    source, model, hardware, setting = (
        table[part][index] for part, index in zip(SERVING, indices, strict=True)
    )
    shared = {"source": source, "model": model, "hardware": hardware, "measured": measured}
    requests = {"batch": batch, "input_len": prompt, "output_len": answer}
    return {"id": name, "group": group} | shared | requests | setting


def dated(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the month and the version that the title of its source names."""
    title = row.get("source", {}).get("title") or ""
    date, version = DATE.search(title), VERSION.search(title)
    found = {"date": "-".join(date.groups())} if date else {}
    if (paper := ARXIV.search(title)) and not date:
        found["date"] = f"20{paper[1]}-{paper[2]}"
    path = row.get("source", {}).get("path") or ""
    if LTS.search(path):
        steps = row["measured"].get("n_iterations")
        found["date"] = LTS_DATES["_2nd" in path or steps in (49, 99)]
    if path in IN_GIB and (stated := row["measured"].get("memory_bytes_per_chip")):
        found["measured"] = row["measured"] | {"memory_bytes_per_chip": stated * GIB_OVER_GB}
    if row.get("origin") in DRAWN_LENGTHS:
        found["shortest_share"] = DRAWN_LENGTHS[row["origin"]]
    if row.get("measured_on"):
        found["date"] = row["measured_on"][:7]
    plan = row.get("parallelism") or {}
    if plan.get("moe_tp"):
        row = row | {"parallelism": plan | {"etp": plan["moe_tp"]}}
    if "TF32" in (row.get("reasons") or {}).get("precision", ""):
        row = row | {"precision": row["precision"] | {"matmul": "tf32"}}
    if version:
        found["framework_version"] = next(text for text in version.groups() if text)
    folder = row.get("source", {}).get("path", "").rpartition("/")[0]
    if stated := STATED.get(folder):
        values = {name: value for name, (value, _) in stated.items()}
        found["software"] = row.get("software", {}) | values
    return {**found, **row, **{key: found[key] for key in ("software", "measured") if key in found}}


def explained(read: list[Row]) -> list[Row]:
    """Return rows with the words behind what raw rows leave out."""
    found = []
    for row in read:
        stated = STATED.get((row.source.path or "").rpartition("/")[0], {})
        why = {f"software.{name}": words for name, (_, words) in stated.items()}
        if row.source.path in IN_GIB and row.measured.memory_bytes_per_chip:
            why["measured.memory_bytes_per_chip"] = IN_GIB[row.source.path]
        found.append(row.model_copy(update={"reasons": {**row.reasons, **why}}) if why else row)
    return found


def stored(entries: list[dict[str, Any]], shared: tuple[str, ...]) -> str:
    """Return rows as the text of a table: parts that rows share by their index."""
    parts: dict[str, list[Any]] = {name: [] for name in shared}
    for entry in entries:
        for name in shared:
            if name in entry:
                known, value = parts[name], entry[name]
                entry[name] = known.index(value) if value in known else len(known)
                if value not in known:
                    known.append(value)
    listed = [f'  "{name}": {_listed(values, "   ")}' for name, values in parts.items() if values]
    return (
        '{\n "parts": {\n' + ",\n".join(listed) + f'\n }},\n "rows": {_listed(entries, "  ")}\n}}\n'
    )


def traffic_rows() -> list[rows.Row]:
    """Return the stages of constant rates as questions, with the options of their server."""
    content = json.loads((FOLDER / "traffic.json").read_text(encoding="utf-8"))
    found = []
    for stage in content["stages"]:
        chips = stage["chips"]
        experts = {"ep": 1, "etp": chips} if stage["model"].startswith("mixtral") else {}
        e2e_ms, ttft_ms = stage["e2e_ms"], stage["ttft_ms"]
        found.append(rows.Row.model_validate({
            "id": stage["id"], "group": stage["id"].partition("/")[0], "framework": "vllm",
            "source": content["sources"]["stages"] | {"path": stage["path"]},
            "model": {"name": stage["model"], "like": stage["model"]},
            "system": f"{chips}xH100", "strategy": {"tp": chips, **experts},
            "prompt_tokens": stage["prompt_tokens"], "answer_tokens": stage["answer_tokens"],
            "traffic": {"rate_per_s": stage["rate_per_s"], "arrivals": "constant",
                        "num_prompts": 100, "most_sequences": 128, "most_pass_tokens": 2048,
                        "memory_share": 0.9},
            "measured": {"e2e_ms": e2e_ms[0], "e2e_p99_ms": e2e_ms[3], "ttft_ms": ttft_ms[0],
                         "tpot_ms": stage["tpot_ms"]},
        }))  # fmt: skip
    return found


def question_fields(row: rows.Row) -> dict[str, Any]:
    """Return the stated fields of a question; a stated switch of software may be a default."""
    entry = row.model_dump(mode="json", exclude_defaults=True)
    if software := row.software.model_dump(mode="json", exclude_unset=True):
        entry["software"] = software
    return entry


def _listed(entries: list[Any], indent: str) -> str:
    """Return a JSON array with one entry a line."""
    lines = [indent + json.dumps(entry, ensure_ascii=False) for entry in entries]
    return "[\n" + ",\n".join(lines) + f"\n{indent[1:]}]"


def main() -> None:
    """Read the raw file that is named, then write the tables of the package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", metavar="RAW.json", type=Path, nargs="?")
    parser.add_argument("--onto", choices=READ)
    args = parser.parse_args()
    if (args.raw is None) != (args.onto is None):
        parser.error("RAW.json and --onto go together")
    if args.raw is not None:
        path = FOLDER / f"{args.onto}.json"
        content = json.loads(args.raw.read_text(encoding="utf-8"))
        known = [*table_rows(path), *explained(rows_of(raw_rows(content)))]
        entries = [row.model_dump(mode="json", exclude_defaults=True) for row in known]
        path.write_text(stored(entries, SHARED), encoding="utf-8")
    for table in rows.TABLES:
        path = FOLDER / f"{table}.json"
        found = map(asked, table_rows(path)) if table in READ else traffic_rows()
        entries = [question_fields(row) for row in found]
        path = rows.DATA / f"{table}.json"
        path.write_text(stored(entries, rows.SHARED), encoding="utf-8")
        print(f"{table}: {len(entries)} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
