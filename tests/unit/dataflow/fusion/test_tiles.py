"""Tiles that are tried where none is given."""

from dataclasses import replace

from meshwright.dataflow.fusion.question import tiles_of
from meshwright_papers.studies.dfmodel.workloads import gpt_layer


def test_a_few_images_pass_one_by_one_and_many_tokens_in_tiles() -> None:
    graph = gpt_layer(64, 2, 32, 2048)
    assert tiles_of(graph) == [16, 32, 64, 128, 256, 512, 1024, 2048]
    assert tiles_of(replace(graph, sizes={**graph.sizes, "tokens": 6})) == [1, 2, 4, 6]
