"""Prices of a sharded program of another planner, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.graphs.solutions import read_solution
from meshwright.catalog.systems import load_system
from meshwright.dataflow.search import calibrated_system
from meshwright.dataflow.solution import local_shape, price_solution

BATCH, TOKENS, HIDDEN, INNER = 8, 1024, 1024, 4096
ROWS = BATCH * TOKENS


def node(name: str, op: str, placement: str, shape: list[int], *inputs: Any) -> dict[str, Any]:
    """Return a node as AutoParallel writes it; inputs are names, or names and two placements."""
    keys = ("name", "src_placement", "dst_placement")
    read = [dict(zip(keys, (one,) if isinstance(one, str) else one, strict=False))
            for one in inputs]  # fmt: skip
    return {"name": name, "op": op, "phase": "forward", "placement": placement, "shape": shape,
            "dtype": "float32", "inputs": read}  # fmt: skip


def mlp(first: str, second: str, between: str, result: str, want: str = "R") -> dict[str, Any]:
    """Return two products over four devices, by the placements of weights and results."""
    return {
        "mesh": {"shape": [4], "dim_names": ["tp"]},
        "parameters": ["w1", "w2"],
        "nodes": [
            node("x", "placeholder", "R", [ROWS, HIDDEN]),
            node("w1", "placeholder", first, [HIDDEN, INNER]),
            node("w2", "placeholder", second, [INNER, HIDDEN]),
            node("up", "aten.mm.default", between, [ROWS, INNER], "x", ("w1", first, first)),
            node("down", "aten.mm.default", result, [ROWS, HIDDEN], "up", "w2"),
            node("y", "aten.alias.default", want, [ROWS, HIDDEN], ("down", result, want)),
            {"name": "output", "op": "output", "inputs": [{"name": "y"}]},
        ],
    }


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    """Return a function that writes a solution and returns its path."""

    def store(content: dict[str, Any]) -> Path:
        path = tmp_path / "solution.json"
        path.write_text(json.dumps(content))
        return path

    return store


def machine(name: str = "4xH100") -> Any:
    return calibrated_system(load_system(name))


def test_column_and_row_split_products_need_one_all_reduce(stored: Any) -> None:
    program = read_solution(stored(mlp("S(1)", "S(0)", "S(1)", "P(sum)")))
    price = price_solution(program, machine())
    (one,) = price.changes
    assert (one.kind, one.axis, one.reader) == ("all_reduce", "tp", "y")
    assert one.num_bytes == BATCH * TOKENS * HIDDEN * 4  # 32 MiB
    assert price.sent_bytes == {"tp": 2 * 3 / 4 * one.num_bytes}
    # Weights 2 x 16 MiB / 4; up 128 MiB / 4; down is a whole partial sum of 32 MiB; y is a view.
    assert price.held_bytes == (8 + 32 + 32) * 2**20
    assert price.product_flops == 2 * 2 * ROWS * HIDDEN * INNER
    alone = machine().links(1, 4)
    from meshwright.spec.collective import CollectiveKind  # the time of the same collective

    assert price.parts_s["collectives_s"] == alone.time_s(CollectiveKind.ALL_REDUCE, one.num_bytes)


def test_a_view_of_a_moved_tensor_is_read_as_the_tensor_itself(stored: Any) -> None:
    def priced(*read: Any) -> float:
        content = mlp("S(1)", "S(0)", "S(1)", "P(sum)")
        for one in content["nodes"][:-1]:  # small enough to stay on the chip
            one["shape"] = [size // 64 for size in one["shape"]]
        shape = content["nodes"][-2]["shape"]
        content["nodes"].insert(-1, node("z", "aten.relu.default", "R", shape, *read))
        return price_solution(read_solution(stored(content)), machine()).parts_s["kernels_s"]

    assert priced("y") == priced(("down", "P(sum)", "R"))


def test_a_scattered_sum_sends_half_of_an_all_reduce(stored: Any) -> None:
    program = read_solution(stored(mlp("S(1)", "S(0)", "S(1)", "P(sum)", want="S(0)")))
    price = price_solution(program, machine())
    (one,) = price.changes
    assert one.kind == "reduce_scatter"
    assert price.sent_bytes == {"tp": 3 / 4 * ROWS * HIDDEN * 4}


def test_weights_of_fsdp_are_gathered_over_their_axis(stored: Any) -> None:
    content = mlp("S(0)R", "RR", "S(0)R", "S(0)R", want="S(0)R")
    content["mesh"] = {"shape": [2, 2], "dim_names": ["fsdp", "tp"]}
    content["nodes"][0]["placement"] = "S(0)R"
    content["nodes"][3]["inputs"][1] |= {"src_placement": "S(0)R", "dst_placement": "RR"}
    price = price_solution(read_solution(stored(content)), machine())
    (one,) = price.changes
    assert (one.tensor, one.kind, one.axis) == ("w1", "all_gather", "fsdp")
    assert one.num_bytes == HIDDEN * INNER * 4
    assert price.sent_bytes == {"fsdp": one.num_bytes / 2, "tp": 0.0}
    assert local_shape((7, 8), (0, 0), {"fsdp": 2, "tp": 2}) == (2, 8)


def test_a_tensor_in_one_placement_is_moved_once(stored: Any) -> None:
    content = mlp("S(1)", "S(0)", "S(1)", "P(sum)")
    content["nodes"].insert(6, node("z", "aten.relu.default", "R", [ROWS, HIDDEN],
                                    ("down", "P(sum)", "R")))  # fmt: skip
    assert len(price_solution(read_solution(stored(content)), machine()).changes) == 1


def test_attention_is_two_products_and_five_for_its_gradient(stored: Any) -> None:
    shape, op = [2, 8, 128, 64], "aten._scaled_dot_product_flash_attention"
    content = {
        "mesh": {"shape": [4], "dim_names": ["tp"]},
        "parameters": [],
        "nodes": [
            *(node(name, "placeholder", "S(1)", shape) for name in "qkvg"),
            node("out", f"{op}.default", "(S(1), S(1), None)", shape, *"qkv"),
            node("grad", f"{op}_backward.default", "S(1)", shape, "g", *"qkv", "out"),
        ],
    }
    price = price_solution(read_solution(stored(content)), machine())
    assert price.product_flops == (2 + 5) * 2 * (2 * 8 * 128 * 128 * 64)
    assert not price.changes


def test_all_faults_of_a_solution_are_told_at_once(stored: Any) -> None:
    content = mlp("S(5)", "S(0)S(1)", "Q", "P(sum)")
    content["parameters"] = ["w3"]
    content["nodes"][0]["dtype"] = "float31"
    content["nodes"][5]["op"] = "aten.convolution.default"
    content["nodes"][4]["inputs"][0] = {"name": "upp"}
    with pytest.raises(SpecError) as raised:
        read_solution(stored(content))
    text = str(raised.value)
    for part in ("splits dim 5 of a tensor with 2 dims", "found 'S(0)S(1)'", "found 'Q'",
                 "no placeholder 'w3'", "float31", "aten.convolution.default is not priced",
                 "no earlier node 'upp'"):  # fmt: skip
        assert part in text


def test_a_sum_cannot_be_opened_and_a_mesh_has_the_devices_of_the_system(stored: Any) -> None:
    content = mlp("S(1)", "S(0)", "S(1)", "P(sum)")
    content["nodes"][4]["inputs"][0] = {"name": "up", "dst_placement": "P(sum)"}
    with pytest.raises(SpecError, match="no collective makes a partial sum over tp"):
        read_solution(stored(content))
    program = read_solution(stored(mlp("S(1)", "S(0)", "S(1)", "P(sum)")))
    with pytest.raises(SpecError, match="its mesh tp 4 has 4 devices, the system 8"):
        price_solution(program, machine("8xH100"))


def test_the_command_shows_both(stored: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from meshwright.cli.main import main

    path = stored(mlp("S(1)", "S(0)", "S(1)", "P(sum)"))
    graph = path.with_name("mlp.yaml")
    graph.write_text(
        f"name: mlp\ntiled: rows\nword: 4 B\ndims: {{rows: {ROWS}, wide: {HIDDEN}, "
        f"inner: {INNER}}}\ninputs: {{x: [rows, wide]}}\noutputs: [down]\nkernels:\n"
        "  up: {unit: matrix, reads: ['x[rows, wide]'], weights: ['w1[wide, inner]'], "
        "writes: [rows, inner]}\n"
        "  down: {unit: matrix, reads: ['up[rows, inner]'], weights: ['w2[inner, wide]'], "
        "writes: [rows, wide]}\n"
    )
    asked = ["map", str(graph), "--on", "4xH100", "--solution", str(path)]
    assert main([*asked, "--detail"]) == 0
    shown = capsys.readouterr().out
    assert "other planner" in shown
    assert "a device sends over tp" in shown
    assert "48.0 MiB" in shown
    assert main([*asked, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["solution"]["sent_bytes"] == {"tp": 48 * 2**20}
    assert answer["product_flops"] == answer["solution"]["product_flops"]
