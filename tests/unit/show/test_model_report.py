"""What ``show model`` says: the record is whole, and the text is the record."""

import json

import pytest

from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.models import load_model, model_names
from meshwright.cli.main import main
from meshwright.graph.transformer import build_graph
from meshwright.show.model import shown_model
from meshwright.view.registry import page_of
from meshwright.view.terminal import text_of


def record_of(name):
    model = load_model(name)
    return plain_data(shown_model(model, build_graph(model)))


def test_record_of_llama3_70b_by_hand():
    record = record_of("llama3-70b")
    assert record["num_params"] == record["num_active_params"] == 70_553_706_496
    assert record["kv_cache_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    assert record["dims"]["hidden_size"] == 8192
    assert record["dims"]["num_layers"] == 80
    rows = {row["name"]: row for row in record["operators"]}
    # Queries, keys and values: 8192 x (64 + 8 + 8) x 128, twice as many FLOP for each token.
    assert rows["attention.qkv"]["num_params"] == 8192 * 80 * 128
    assert rows["attention.qkv"]["forward_flops_per_token"] == 2 * 8192 * 80 * 128
    # Scores and weighted values: 2 x 64 x 128 each, for each key.
    assert rows["attention.core"]["forward_flops_per_token_and_key"] == 4 * 64 * 128


def test_routed_rows_count_top_k_times():
    rows = {row["name"]: row for row in record_of("mixtral-8x7b")["operators"]}
    assert rows["experts.up"]["num_params"] == 8 * 4096 * 2 * 14336
    assert rows["experts.up"]["forward_flops_per_token"] == 2 * 2 * 4096 * 2 * 14336


@pytest.mark.parametrize("name", ["gpt2-124m", "deepseek-v3", "gemma3-4b", "gpt-oss-20b"])
def test_operators_hold_all_parameters_and_twice_as_many_flops(name):
    record = record_of(name)
    assert (
        sum(r["num_layers"] * r["num_params"] for r in record["operators"])
        == (record["num_params"])
    )
    assert sum(record["params_by_part"].values()) == record["num_params"]
    # A token multiplies each weight it uses once, except tables, norms, biases and sinks.
    flops = sum(r["num_layers"] * r["forward_flops_per_token"] for r in record["operators"])
    head = record["dims"]["vocab_size"] * record["dims"]["hidden_size"]
    looked_up = record["params_by_part"]["embedding"]
    used = record["num_active_params"] - looked_up - record["params_by_part"]["norms"]
    used += head if record["dims"]["tied_embeddings"] else 0
    assert flops <= 2 * used
    assert flops == pytest.approx(2 * used, rel=2e-3)


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma3-4b"])
def test_text_states_counts_and_conventions(name):
    model, record = load_model(name), record_of(name)
    text = text_of(page_of(shown_model(model, build_graph(model))), detail=True)
    assert f"{record['num_params']:,}" in text
    assert f"{record['kv_cache_bytes_per_token']:,.0f}" in text
    joined = " ".join(text.split())
    assert all(" ".join(line.split()) in joined for line in record["conventions"])


def test_command_prints_json_text_and_names(capsys):
    assert main(["show", "model", "Qwen/Qwen3-32B", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_params"] == 32_762_123_264
    assert main(["show", "model", "grok-1"]) == 0
    assert "315,684,820,992" in capsys.readouterr().out
    assert main(["show", "model"]) == 0
    assert capsys.readouterr().out.split() == list(model_names())


def test_command_refuses_an_unknown_model_with_status_2(capsys):
    assert main(["show", "model", "llama3-70"]) == 2
    assert "llama3-70b" in capsys.readouterr().err
