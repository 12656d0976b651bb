"""Tiles that are tried where none is given."""

from dataclasses import replace

import pytest

from meshwright.dataflow.fusion.fuse import fuse_graph
from meshwright.dataflow.fusion.question import FusionQuestion, target_named, tiles_of
from meshwright.dataflow.fusion.search import fuse
from meshwright.dataflow.question import load_graph
from meshwright_papers.studies.dfmodel.workloads import gpt_layer


def test_a_few_images_pass_one_by_one_and_many_tokens_in_tiles() -> None:
    graph = gpt_layer(64, 2, 32, 2048)
    assert tiles_of(graph) == [16, 32, 64, 128, 256, 512, 1024, 2048]
    assert tiles_of(replace(graph, sizes={**graph.sizes, "tokens": 6})) == [1, 2, 4, 6]


def test_a_search_ends_in_time_with_the_best_answer_so_far():
    graph = gpt_layer(1024, 8, 128, 512, repeats=4)
    asked = FusionQuestion(graph, target_named("SN10"))
    asked = replace(asked, target=replace(asked.target, link_bytes_per_s=25e9))
    whole, cut = fuse_graph(asked, chips=2), fuse_graph(asked, chips=2, time_limit_s=0.0)
    assert cut.counts.tiles_fused == 1 < whole.counts.tiles_fused
    least, best, found = (
        repeats * seconds
        for repeats, seconds in (
            (cut.repeats, cut.bound_s), (whole.repeats, whole.time_s), (cut.repeats, cut.time_s),
        )
    )  # fmt: skip
    assert least <= best <= found
    assert cut.gap >= whole.gap


def test_an_interrupt_shows_the_best_answer_so_far(monkeypatch):
    graph = load_graph("gpt3-175b-layer")
    asked = FusionQuestion(graph, target_named("SN10"))
    whole, fused = fuse_graph(asked), []

    def interrupted(problem, orders, *, enough_s):
        if fused:
            raise KeyboardInterrupt
        found = fuse(problem, orders, enough_s=enough_s)
        fused.append(problem)
        return found

    monkeypatch.setattr("meshwright.dataflow.fusion.search.fuse", interrupted)
    cut = fuse_graph(asked)
    assert cut.counts.tiles_fused == 1
    assert cut.bound_s <= whole.time_s <= cut.time_s
    fused.append("nothing found so far")
    with pytest.raises(KeyboardInterrupt):
        fuse_graph(asked)
