"""Pictures of wafers: everything is there, to scale, legible, and nothing comes from outside."""

import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree as Tree

import numpy as np
import pytest

from meshwright.base.errors import UnsupportedError
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.topology.grid import mesh, ring, torus
from meshwright.topology.network import LinkSpec
from meshwright.topology.switched import switch
from meshwright.topology.wafer import Wafer, one_wafer, wafers_in_a_row
from meshwright.train.question import training
from meshwright.wafer.chart import (
    GREY,
    HEAT,
    NARROWEST,
    WIDEST,
    arrows_of,
    make_canvas,
    map_chart,
    map_spec,
    map_svg,
    words_of,
)
from meshwright.wafer.picture import WaferMap, draw, group_letter, wafer_text
from meshwright.wafer.training import estimate

LINK = LinkSpec(2e12, 2e-7)
SVG = "{http://www.w3.org/2000/svg}"


def wafer(rows=2, columns=3):
    return one_wafer(Wafer((rows, columns), (LINK, LINK))).build()


def picture_of(network, **changes):
    """Return a picture with groups of two devices, and the load of link k at k percent."""
    devices = np.arange(network.num_devices)
    known = {
        "network": network, "title": "a plan", "caption": "loads of a step, contended",
        "group": devices // 2,
        "group_names": tuple(f"tp {i}" for i in range(-(-network.num_devices // 2))),
        "labels": tuple(f"tp{device % 2}\ndp{device // 2}" for device in devices),
        "load_share": np.arange(network.num_links) / 100.0,
        "load_note": "100 % = 1 MB",
    }  # fmt: skip
    return WaferMap(**(known | changes))


def rows_of(picture, field):
    """Return the rows of the map that have a field."""
    listed = map_spec(picture)["datasets"].values()
    return next((rows for rows in listed if rows and field in rows[0]), [])


def told(picture):
    """Return what a pointer over each thing tells."""
    listed = map_spec(picture)["datasets"].values()
    return {row["says"] for rows in listed for row in rows if "says" in row}


def test_every_device_link_and_io_die_is_drawn():
    network = wafer()
    texts = told(picture_of(network))
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    expected = {f"{a} to {b}: {k}%" for k, (a, b) in enumerate(ends)}
    assert {text for text in texts if " to " in text} == expected
    assert len(rows_of(picture_of(network), "load")) == network.num_links
    assert sum(text.startswith("device ") for text in texts) == 6
    assert sum(text.startswith("IO die ") for text in texts) == 10
    assert "device 3, 100% of full speed, tp 1, tp1, dp1" in texts


def test_groups_have_their_colour_and_letter():
    picture = picture_of(wafer())
    dies = rows_of(picture, "group")
    assert [die["letter"] for die in dies] == ["A", "A", "B", "B", "C", "C"]
    colour = next(
        layer["encoding"]["color"] for layer in map_spec(picture)["layer"]
        if layer["encoding"].get("color", {}).get("field") == "group"
    )  # fmt: skip
    shades = dict(zip(colour["scale"]["domain"], colour["scale"]["range"], strict=True))
    assert len({shades[die["group"]] for die in dies}) == 3
    assert colour["legend"]["values"] == ["A tp 0", "B tp 1", "C tp 2"]


def test_a_long_title_takes_lines_that_fit_the_page():
    words = "a model on a wafer: " + "tp4 pp2 dp8 zero3 " * 12
    tree = Tree.fromstring(map_svg(picture_of(wafer(), title=words)))
    lines = [e for e in tree.iter(f"{SVG}tspan") if e.text in words]
    assert " ".join(line.text for line in lines).split() == words.split()
    width = float(tree.get("viewBox").split()[2])
    assert len(lines) > 1
    assert all(8.0 * len(line.text) <= width for line in lines)


def test_the_load_of_a_link_is_a_share_of_the_step():
    """The hottest one is busy as long as the plan says that its busiest link is."""
    work = training("wafer-4x8", sequence_length=256, global_batch_size=32)
    found = estimate(
        "gpt2-medium",
        "wafer-4x8",
        work,
        make_strategy(dp_shard=32),
        PlanOptions(sequence_parallel=False, zero_stage=1),
    )
    picture = draw(found)
    placement, step_s = found.best.placement, found.best.estimate.step_time_s
    assert picture.load_share.max() == pytest.approx(placement.busy_s["d2d"] / step_s)
    assert picture.load_share.max() < 1


def test_heat_is_told_by_colour_width_and_number():
    network = wafer(1, 2)
    share = np.zeros(network.num_links)
    share[network.link_between[0, 1]] = 0.87
    share[network.link_between[1, 0]] = 0.004
    rows = rows_of(picture_of(network, load_share=share), "load")
    assert [row["percent"] for row in rows] == [""] * (network.num_links - 2) + ["<1", "87"]
    assert rows[-1]["wide"] == pytest.approx(NARROWEST + 0.87 * (WIDEST - NARROWEST))
    text = map_svg(picture_of(network, load_share=share))
    strokes = re.findall(r'<line [^>]*stroke="(rgb[^"]+|#\w+)"', text)
    assert GREY in text
    assert len(set(strokes)) >= 2  # one in its colour for each load


def test_faults_are_crossed_out_and_slow_devices_pale():
    network = wafer().without([4], [(0, 1)])
    slow = replace(network, speed_factor=np.array([1, 1, 0.75, 1, 0, 1]))
    picture = picture_of(slow, dead_wires=((0, 1),))
    dies = rows_of(picture, "group")
    assert [die["opacity"] for die in dies] == [0.4, 0.4, 0.15, 0.4, 0.0, 0.4]
    assert [die["speed"] for die in dies] == ["", "", "75%", "", "", ""]
    texts = told(picture)
    assert {"device 4, dead", "0 and 1: dead wire"} <= texts
    assert not any(text.startswith(("4 to", "0 to 1:")) for text in texts)
    assert "device 2, 75% of full speed, tp 1, tp0, dp1" in texts
    assert "crossed out: dead" in words_of(picture)
    assert "part of their cores" in words_of(picture)


def test_marks_that_do_not_occur_are_not_explained():
    words = words_of(picture_of(mesh((2, 2), LINK).build()))
    assert not any(mark in words for mark in ("dead", "IO dies", "no work", "cores"))
    spare = picture_of(wafer(), group=np.array([0, 0, 1, 1, 2, -1]))
    assert "no work" in words_of(spare)


def test_two_wafers_have_a_seam():
    pair = wafers_in_a_row(2, Wafer((2, 2), (LINK, LINK)), LINK).build()
    assert len(rows_of(picture_of(pair), "word")) == 1
    assert not rows_of(picture_of(wafer()), "word")


def test_links_that_close_a_ring_leave_and_enter_the_grid():
    rings = torus((3, 3), LINK).build()
    rows = rows_of(picture_of(rings), "load")
    counts = Counter(row["says"] for row in rows)
    assert sorted(counts.values()) == [1] * 24 + [2] * 12


def test_a_page_has_the_map_in_characters_too():
    picture = picture_of(wafer())
    assert map_chart(picture).text.splitlines() == list(wafer_text(picture))


def test_places_are_true_to_scale():
    network = wafer(2, 3)
    canvas = make_canvas(network)
    first, right, below = (canvas.boxes[device] for device in (0, 1, 3))
    assert (right.x - first.x) / canvas.pixels_per_m == pytest.approx(24.99e-3)
    assert (below.y - first.y) / canvas.pixels_per_m == pytest.approx(33.25e-3)
    edges = [
        (box.x - box.half_width, box.x + box.half_width, box.y - box.half_height,
         box.y + box.half_height)
        for box in canvas.boxes
    ]  # fmt: skip
    left, right_edge, top, bottom = zip(*edges, strict=True)
    assert (min(left), min(top)) == pytest.approx((0, 0), abs=1e-9)
    assert (max(right_edge), max(bottom)) == pytest.approx((canvas.width, canvas.height))


@pytest.mark.parametrize("network", [wafer(3, 4), torus((3, 4), LINK).build()])
def test_arrows_end_outside_of_boxes_and_keep_to_the_right(network):
    canvas = make_canvas(network)
    for source, target in network.link_between:
        for arrow in arrows_of(source, target, canvas):
            for x, y in (arrow[:2], arrow[2:]):
                assert not any(
                    abs(x - box.x) < box.half_width and abs(y - box.y) < box.half_height
                    for box in canvas.boxes
                )
            along = arrow.direction
            box = canvas.boxes[source]
            near = abs(arrow.x - box.x) < 100 and abs(arrow.y - box.y) < 100
            anchor = box if near else canvas.boxes[target]
            aside = along[0] * (arrow.y - anchor.y) - along[1] * (arrow.x - anchor.x)
            assert aside == pytest.approx(8.5)


def test_texts_are_escaped_and_nothing_comes_from_outside():
    text = map_svg(
        picture_of(wafer(), title='<b> & "q"', caption="a < b & c", group_names=("<x>", "&", "y"))
    )
    Tree.fromstring(text)
    assert "<b>" not in text
    assert "<x>" not in text
    outside = re.findall(r"https?://[^\"' ]+|href|@import|url\([^#]", text)
    assert outside == ["http://www.w3.org/2000/svg"]


def test_equal_input_equal_picture():
    assert map_svg(picture_of(wafer(4, 8))) == map_svg(picture_of(wafer(4, 8)))


def luminance(colour):
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2


def test_heat_also_orders_links_in_grey():
    steps = [luminance(colour) for colour in HEAT]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(
    ("index", "letter"),
    [(-1, "-"), (0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (702, "AAA")],
)
def test_letters(index, letter):
    assert group_letter(index) == letter


@pytest.mark.parametrize("network", [switch(8, LINK).build(), ring(8, LINK).build()])
def test_other_networks_are_refused(network):
    with pytest.raises(UnsupportedError, match="rows and columns"):
        picture_of(network)


def test_text_map_by_hand():
    network = wafer(2, 2).without([], [(1, 3)])
    share = np.zeros(network.num_links)
    for ends, value in {(0, 1): 1.0, (1, 0): 0.05, (2, 0): 0.39, (3, 2): 0.9}.items():
        share[network.link_between[ends]] = value
    picture = picture_of(
        replace(network, speed_factor=np.array([1, 0.5, 1, 1])),
        group=np.array([0, 0, 1, -1]), group_names=("tp 0", "tp 1"), load_share=share,
        dead_wires=((3, 1),),
    )  # fmt: skip
    lines = list(wafer_text(picture))
    assert lines[:8] == [
        "a plan",
        "",
        "A0  9>  A1~",
        "    <0",
        ".v^3    xv^x",
        "B2  .>  -3",
        "    <9",
        "",
    ]
    assert "A tp 0, B tp 1" in lines


def test_text_map_tells_dead_devices_and_other_links():
    pair = wafers_in_a_row(2, Wafer((2, 2), (LINK, LINK)), LINK).build().without([3])
    share = np.zeros(pair.num_links)
    seam = np.flatnonzero(pair.level == 2)
    share[seam[0]] = 0.6
    lines = list(wafer_text(picture_of(pair, load_share=share)))
    assert any(re.match(r"B2 +x3$", line) for line in lines)
    ends = f"{pair.source[seam[0]]} > {pair.target[seam[0]]} 60%"
    assert f"1 other loaded links, as {ends}" in lines
    assert sum(line.startswith(("A0", "C4")) for line in lines) == 2


@pytest.mark.parametrize("shape", [(6, 8), (9, 10), (32, 32), (2, 100)])
def test_text_map_fits_in_100_columns(shape):
    lines = list(wafer_text(picture_of(mesh(shape, LINK).build())))
    assert max(map(len, lines)) <= 100


def test_text_map_of_too_many_columns_is_refused():
    with pytest.raises(UnsupportedError, match="101 columns"):
        list(wafer_text(picture_of(mesh((2, 101), LINK).build())))
