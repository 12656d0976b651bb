"""The pipeline chart: well-formed, all stages and kinds of tasks, and what is left out is said."""

from xml.etree import ElementTree

import pytest

from meshwright import estimate, timeline
from meshwright.train.picture import pipeline_svg

SVG = "{http://www.w3.org/2000/svg}"
QUESTION = {"on": "32xH100", "seq": 2048, "tp": 2, "mbs": 1, "zero": 1}


def chart(**options):
    """Return a plan, its timeline and its chart."""
    plan = estimate("llama3-8b", **QUESTION, **options)
    line = timeline(plan)
    root = ElementTree.fromstring(pipeline_svg(plan, line))
    assert root.tag == f"{SVG}svg"
    return line, root, " ".join(root.itertext())


def test_a_short_step_is_drawn_whole_with_numbers():
    line, root, text = chart(pp=4, global_batch=16, schedule="1f1b")
    assert "left out" not in text
    assert all(f"stage {stage}" in text for stage in range(4))
    assert "time of a step [" in text
    assert "memory of a device [GiB]" in text
    assert line.num_micro_batches == 4
    inside = [e.text for e in root.iter(f"{SVG}text") if "inside" in e.get("class", "")]
    # one forward and one backward pass of each micro-batch on each of four stages
    assert sorted(inside) == sorted(str(i) for i in range(4) for _ in range(2 * 4))


def test_of_many_micro_batches_the_first_and_the_last_are_drawn():
    line, root, text = chart(pp=4, global_batch=4096, schedule="1f1b")
    assert f"{line.num_micro_batches} micro-batches" in text
    assert "are left out" in text
    assert "communication within passes is drawn as part of them" in text
    assert len(ElementTree.tostring(root)) < 200_000


def test_split_backward_passes_have_a_colour_of_their_own():
    _, _, text = chart(pp=4, global_batch=32, schedule="zero_bubble")
    assert "weight gradient" in text
    assert "input gradient" in text


def test_a_tight_memory_shows_the_fullest_stage():
    line, _, text = chart(pp=8, dp=2, global_batch=64, schedule="1f1b")
    peaks = [memory.peak_bytes for memory in line.memory]
    assert f"stage {peaks.index(max(peaks))}: " in text
    assert "capacity 80.0 GiB" in text


@pytest.mark.parametrize("pp", [1, 2])
def test_equal_input_gives_equal_pictures(pp):
    plan = estimate("llama3-8b", **QUESTION, pp=pp, global_batch=64, schedule="1f1b")
    assert pipeline_svg(plan, timeline(plan)) == pipeline_svg(plan, timeline(plan))
