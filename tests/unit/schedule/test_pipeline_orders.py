"""Hand-derived orders, bubbles and in-flight counts of the pipeline schedules."""

import pytest

from meshwright.schedule.pipeline_schedules import schedules
from meshwright.schedule.tasks import KINDS, StageTimes, build_timeline


def words(name, stage, p, v, m):
    """Write an order as F0 B0 ...; a chunk follows a dot."""
    order = schedules[name].order(stage, p, v, m)
    chunk = (lambda task: f".{task.chunk}") if v > 1 else (lambda task: "")
    return " ".join(f"{task.kind}{task.micro_batch}{chunk(task)}" for task in order)


def test_orders_of_two_stages():
    assert words("gpipe", 1, 2, 1, 2) == "F0 F1 B0 B1"
    assert words("1f1b", 0, 2, 1, 3) == "F0 F1 B0 F2 B1 B2"
    assert words("1f1b", 1, 2, 1, 3) == "F0 B0 F1 B1 F2 B2"
    assert words("zero_bubble", 0, 2, 1, 3) == "F0 F1 BI0 BW0 F2 BI1 BW1 BI2 BW2"
    assert words("zero_bubble", 1, 2, 1, 3) == "F0 BI0 F1 BI1 BW0 F2 BI2 BW1 BW2"


def test_order_of_interleaved_two_stages_two_chunks():
    # stage 1: warm-up 2 (2 - 1 - 1) + (2 - 1) 2 = 2 passes, then F B in turn, chunks reversed in B
    assert words("interleaved", 1, 2, 2, 2) == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"
    # stage 0: warm-up 2 + 2 = 4 passes: everything
    assert words("interleaved", 0, 2, 2, 2) == "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"


@pytest.mark.parametrize(
    ("name", "v", "bubble"),
    [
        ("gpipe", 1, 3 * (1 + 2 + 0.2)),
        ("1f1b", 1, 3 * (1 + 2 + 0.2)),
        ("interleaved", 2, 3 * (3 / 2 + 0.2)),
        ("zero_bubble", 1, 3 * (1 + 1 - 1 + 0.2)),
    ],
)
def test_bubble_of_four_stages(name, v, bubble):
    # forward 1 s, input and weight gradient 1 s each, a send 0.1 s
    assert schedules[name].bubble_s(1.0, 1.0, 1.0, 0.1, 4, v, 8) == pytest.approx(bubble)


def test_zero_bubble_with_one_micro_batch_fills_nothing():
    # the last weight gradient is the only one, and stage 0 makes it last: 3 F and 3 BI are idle
    assert schedules["zero_bubble"].bubble_s(1.0, 1.5, 0.5, 0.0, 4, 1, 1) == 3 * 2.5


def test_peak_in_flight_of_four_stages():
    assert [schedules["1f1b"].peak_in_flight(s, 4, 1, 8) for s in range(4)] == [4, 3, 2, 1]
    assert schedules["1f1b"].peak_in_flight(0, 4, 1, 2) == 2
    assert schedules["gpipe"].peak_in_flight(3, 4, 1, 8) == 8
    # Korthikanti et al.: p (1 + (p - 1) / (p v)) = 4 (1 + 3 / 8) = 5.5 stages on stage 0
    assert schedules["interleaved"].peak_in_flight(0, 4, 2, 8) == 5.5
    assert [schedules["zero_bubble"].peak_in_flight(s, 4, 1, 8) for s in range(4)] == [4] * 4


def test_interleaving_needs_a_multiple_of_the_stages():
    legal = schedules["interleaved"].is_legal
    assert legal(2, 2, 4)
    assert not legal(2, 2, 3)
    assert not legal(2, 1, 4)


def test_timeline_of_two_stages_by_hand():
    # stage 0: F0 0-1, F1 1-2, B0 4-6 (stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7), B1 7-9
    line = build_timeline(schedules["1f1b"], 2, 1, 2, StageTimes(1.0, 1.0, 1.0))
    ends = {
        (int(s), KINDS[k], int(i)): float(e)
        for s, k, i, e in zip(line.stage, line.kind, line.micro_batch, line.end_s, strict=True)
    }
    assert ends[0, "B", 0] == 6
    assert ends[1, "B", 1] == 7
    assert line.makespan_s == 9


def test_uneven_stages_take_their_own_times():
    # one micro-batch visits 1 s and 3 s forward, then 3 s and 1 s backward
    times = StageTimes([1.0, 3.0], [1.0, 3.0], [0.0, 0.0])
    assert build_timeline(schedules["gpipe"], 2, 1, 1, times).makespan_s == 8
