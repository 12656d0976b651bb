"""The picture of a step: well-formed, all stages and kinds of tasks, and the memory below."""

from xml.etree import ElementTree

import pytest

from meshwright import estimate, timeline
from meshwright.train.view.timeline import step_svg

SVG = "{http://www.w3.org/2000/svg}"
QUESTION = {"on": "32xH100", "seq": 2048, "tp": 2, "mbs": 1, "zero": 1}


def chart(**options):
    """Return a plan, its timeline and its chart."""
    plan = estimate("llama3-8b", **QUESTION, **options)
    line = timeline(plan)
    root = ElementTree.fromstring(step_svg(line))
    assert root.tag == f"{SVG}svg"
    return line, root, " ".join(root.itertext())


def test_a_short_step_is_drawn_whole_with_numbers():
    line, root, text = chart(pp=4, global_batch=16, schedule="1f1b")
    assert "The beginning of the step" not in text
    assert f"forward {line.seconds_by_task()['forward'].mean() / line.step_time_s:.1%}" in text
    assert "TP communication" in text
    assert "memory [GiB]" in text
    assert line.num_micro_batches == 4
    inside = [e.text for e in root.iter(f"{SVG}text") if e.get("font-size") == "9px"
              or e.text in map(str, range(4))]  # fmt: skip
    # One forward and one backward pass of each micro-batch on each of four stages, and the name of
    # each stage; 0 is also on the axis of memory.
    assert sorted(inside) == sorted([*(str(i) for i in range(4) for _ in range(2 * 4 + 1)), "0"])


def test_of_many_micro_batches_the_first_and_the_last_are_drawn():
    line, root, text = chart(pp=4, global_batch=4096, schedule="1f1b")
    assert f"{line.num_micro_batches:,} micro-batches" in text
    assert "The beginning of the step" in text
    assert "The end of the step" in text
    assert len(ElementTree.tostring(root)) < 300_000


def test_split_backward_passes_have_a_colour_of_their_own():
    _, _, text = chart(pp=4, global_batch=32, schedule="zero_bubble")
    assert "weight gradient" in text
    assert "input gradient" in text


def test_a_tight_memory_shows_the_fullest_stage():
    line, _, text = chart(pp=8, dp=2, global_batch=64, schedule="1f1b")
    peaks = [memory.peak_bytes for memory in line.memory]
    assert f"{peaks.index(max(peaks))}: {max(peaks) / 2**30:.1f} GiB" in text
    assert "capacity 80.0 GiB" in text


@pytest.mark.parametrize("pp", [1, 2])
def test_equal_input_gives_equal_pictures(pp):
    plan = estimate("llama3-8b", **QUESTION, pp=pp, global_batch=64, schedule="1f1b")
    assert step_svg(timeline(plan)) == step_svg(timeline(plan))
