"""Adapters of low rank that files state, as options of this program."""

from __future__ import annotations

import re

from meshwright.frameworks.reading.given import Given, Options

ALL = ("q", "k", "v", "o", "gate", "up", "down")
PRODUCTS = {
    "q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o", "out_proj": "o",
    "output_proj": "o", "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    "w1": "gate", "w3": "up", "w2": "down", "gate_up_proj": "gate+up",
    "qkv_proj": "q+k+v", "query_key_value": "q+k+v", "c_attn": "q+k+v", "Wqkv": "q+k+v",
    "W_pack": "q+k+v", "q_a_proj": "q", "q_b_proj": "q", "kv_a_proj_with_mqa": "k",
    "kv_b_proj": "v", "dense_h_to_4h": "up", "dense_4h_to_h": "down", "c_fc": "up",
    "linear_qkv": "q+k+v", "linear_proj": "o", "linear_fc1": "gate+up", "linear_fc2": "down",
    "linear_q": "q", "linear_k": "k", "linear_v": "v", "linear_fc1_gate": "gate",
    "linear_fc1_up": "up", "all": "+".join(ALL), "all-linear": "+".join(ALL),
}  # fmt: skip
"""Products by their names in models of transformers, Megatron Bridge and torchtune."""


def adapter_options(
    given: Given, ranks: tuple[str, ...], targets: tuple[str, ...], *,
    usual_rank: int, usual_targets: str, is_on_all: bool = False,
) -> Options:  # fmt: skip
    """Return rank and targets of adapters, as options.

    Parameters
    ----------
    ranks, targets
        Names under which the program states them.
    usual_rank, usual_targets
        Values of the program where the file does not state them.
    is_on_all
        Whether all products have adapters, in addition to the named ones.
    """
    rank = given.whole(*ranks) or usual_rank
    text = given.text(*targets) or ("" if is_on_all else usual_targets)
    if "(" in text or "*" in text:  # PEFT takes one text for a pattern of whole names
        groups = re.findall(r"\(([\w|]+)\)_proj", text)
        text = " ".join([*(f"{name}_proj" for group in groups for name in group.split("|")),
                         *re.findall(r"(?<![\w)])\w+_proj\b", text)])  # fmt: skip
    named = [part for part in re.split(r"[\s,'\"\[\]]+", text) if part]
    found = set(ALL) if is_on_all else set()
    for name in named:
        last = name.rpartition(".")[2]
        if last not in PRODUCTS and not is_on_all:
            option = next((one for one in targets if one in given), targets[0])
            known = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, all-linear"
            given.refuse(option, f"adapters of {name} are not read", known)
        found |= set(PRODUCTS.get(last, "").split("+")) - {""}
    chosen = "+".join(target for target in ALL if target in found)
    return {"lora_rank": rank, "lora_targets": chosen or None}
