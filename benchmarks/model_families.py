"""Causal families of transformers beside our reading of their ``config.json``: exact parameters.

    python benchmarks/model_families.py [--out PAGE.md] [--only MODEL_TYPE ...]

Each family that transformers maps to a causal model, or to one of images and text, is configured by
the defaults of its class (or a small stated configuration where those do not build), written as
``config.json`` and read. Parameters are those of the modules that transformers builds without
memory: of the language model alone, with the correction biases of routers, which are buffers there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "tests")]
with suppress(ModuleNotFoundError):
    import public_models  # noqa: F401  (makes torchvision importable beside a CPU build)
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from meshwright.base.errors import MeshwrightError  # noqa: E402
from meshwright.catalog.models import read_config  # noqa: E402
from meshwright.graph.parameters import count_parameters  # noqa: E402

CAUSAL = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
OTHERS = {
    name: architecture
    for name, architecture in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()
    if name not in CAUSAL
}
TOLERANCE = 1e-3
"""Share of the parameters by which a family that is read may differ."""
STATED: dict[str, dict[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "glm4v_moe": {"text_config": {"head_dim": 128}},
    "qwen2_5_omni_thinker": {"tie_word_embeddings": True},
    "gemma3n_text": {"num_kv_shared_layers": 10},
    "dots1": {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6},
    **{
        name: {"tie_word_embeddings": False}
        for name in (
            "deepseek_vl", "deepseek_vl_hybrid", "internvl", "janus", "kimi_k25", "lighton_ocr",
            "hyperclovax_vision_v2", "minicpm_ocr", "mistral3", "moss_transcribe_diarize", "ovis2",
        )
    },
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}  # fmt: skip
"""Fields of configurations that do not build by their defaults alone."""
BIASES = ("correction_bias", "expert_bias")
"""Ends of the names of biases of routers."""
PAGE = """# Families of models beside transformers

Every family that transformers {version} maps to a causal language model, or to a model of images
and text, configured by the defaults of its class and read from its `config.json`. Parameters are
those of the language model as transformers builds it, with the correction biases of routers.
Written by `python benchmarks/model_families.py --out docs/results/model_families.md`.

"""


def built(name: str, config: Any) -> Any:
    """Return the model of transformers, on no device."""
    auto = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        if name not in CAUSAL:
            auto = transformers.AutoModelForImageTextToText
        return auto.from_config(config)


def language_parameters(model: Any) -> int:
    """Return the parameters of the language model, without towers of other media."""
    inner = getattr(model, "model", model)
    of_text = next(
        (part for at in ("language_model", "text_model", "llm")
         for part in [getattr(inner, at, None)] if isinstance(part, torch.nn.Module)), None,
    )  # fmt: skip
    parts = [model] if of_text is None else [of_text, model.get_output_embeddings()]
    found = {
        id(value): value.numel()
        for part in parts
        if part is not None
        for pairs in (part.named_parameters(), part.named_buffers())
        for name, value in pairs
        if isinstance(value, torch.nn.Parameter) or name.endswith(BIASES)
    }
    return sum(found.values())


def stated_config(name: str) -> tuple[Any, dict[str, Any]]:
    """Return a configuration of transformers, and its ``config.json``."""
    config = CONFIG_MAPPING[name](**STATED.get(name, {}))
    architecture = (CAUSAL | OTHERS).get(name, ())
    first = [architecture] if isinstance(architecture, str) else list(architecture[:1])
    return config, {**json.loads(config.to_json_string()), "architectures": first}


def row(name: str) -> tuple[str, str, str, str]:
    """Return a row of the table: model type, parameters there and here, and the verdict."""
    try:
        config, stated = stated_config(name)
        theirs = language_parameters(built(name, config))
    except Exception as error:  # a matter of transformers
        reason = " ".join(f"{type(error).__name__} {error}".split())
        return name, "", "", f"not built: {reason[:60]}"
    try:
        ours = count_parameters(read_config(stated)).num_params
    except MeshwrightError as error:
        reason = " ".join(str(error).replace("|", "/").split())
        return name, f"{theirs:,}", "", f"refused: {reason[:110]}"
    verdict = "equal" if ours == theirs else f"{ours / theirs - 1:+.1e}"
    if abs(ours / theirs - 1) > TOLERANCE:
        verdict = f"WRONG {verdict}"
    return name, f"{theirs:,}", f"{ours:,}", verdict


def summary(rows: list[tuple[str, str, str, str]], of: dict[str, str], kind: str) -> str:
    """Return the counts of a kind of families in words."""
    verdicts = Counter(
        "equal" if row[3] == "equal" else row[3].split(":")[0].split()[0]
        for row in rows
        if row[0] in of
    )
    read = sum(bool(row[2]) for row in rows if row[0] in of)
    return (
        f"{kind}: {read} of {sum(verdicts.values())} are read, {verdicts['equal']} exactly; "
        f"{verdicts['refused']} are refused, {verdicts['not']} do not build by their defaults."
    )


def main() -> None:
    """Read all families, print a line for each, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in asked.only or sorted({*CAUSAL, *OTHERS}):
        rows.append(row(name))
        print(*rows[-1], flush=True)
    counts = [summary(rows, CAUSAL, "Causal"), summary(rows, OTHERS, "Images and text")]
    print("\n".join(counts))
    if asked.out:
        lines = ["| `model_type` | parameters | read | |", "|---|--:|--:|---|"]
        lines += [f"| {' | '.join(cells)} |" for cells in rows]
        page = PAGE.format(version=transformers.__version__)
        asked.out.write_text(page + "\n\n".join(counts) + "\n\n" + "\n".join(lines) + "\n")
    if wrong := [cells[0] for cells in rows if cells[3].startswith("WRONG")]:
        sys.exit(f"wrong counts: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
