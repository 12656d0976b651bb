"""The page of a walk: its player, its tiles, and every frame in words."""

import json
import re

import pytest
from report_pages import EVIL, check_names_are_text, check_page, parts_of

from meshwright.catalog.models import load_model
from meshwright.sharding.strategy import Streamed
from meshwright.show.walks.block import block_walk
from meshwright.show.walks.collective import collective_walk
from meshwright.show.walks.named import dense_layer
from meshwright.show.walks.stream import Layer, stream_walk
from meshwright.show.walks.view import walk_page
from meshwright.show.walks.walk import Recorder, WalkTensor, loop_of
from meshwright.view.html import html_of
from meshwright.view.parts import Player


def block(*, sequence_parallel=True, name="gpt3-175b"):
    layer = dense_layer(load_model("gpt3-175b"))
    return block_walk("tp", layer, name, 4, 2048, sequence_parallel=sequence_parallel)


WALKS = {
    "tp-sp": block(),
    "tatp": stream_walk("tatp", "stream", 5, Layer("layer", 80, 10, 100), Streamed.WEIGHTS),
    "wave": collective_walk("even_wave_all_reduce", (2, 3), 2.0**20),
    "switch": collective_walk("in_network_all_reduce", (4,), 2.0**20),
}


def player_of(walk):
    """The player of a page."""
    return next(part for part in parts_of(walk_page(walk)) if isinstance(part, Player))


@pytest.mark.parametrize("name", WALKS)
def test_changes_from_frame_to_frame_add_up_to_what_is_held(name):
    walk = WALKS[name]
    data = json.loads(json.dumps(player_of(walk).data))
    shown = [{} for _ in walk.members]
    for frame, told in zip(data["frames"], walk.frames, strict=True):
        for member, changes in enumerate(frame["changes"]):
            shown[member] |= {data["tensors"][int(key)]["name"]: v for key, v in changes.items()}
            held = {}
            for group in told.held[member]:
                held.setdefault(group.tensor, []).append([list(group.parts), len(group.terms_of)])
            assert {tensor: groups for tensor, groups in shown[member].items() if groups} == held


@pytest.mark.parametrize("name", WALKS)
def test_a_page_is_whole_and_asks_for_nothing(name):
    page = walk_page(WALKS[name], [WALKS[name]], "meshwright show walk")
    check_page(page)
    text = html_of(page)
    assert "default-src 'none'" in text
    assert "vega" not in text.lower()
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*", text) == []
    assert len(player_of(WALKS[name]).steps) == len(WALKS[name].frames)


def test_names_are_text():
    check_names_are_text(walk_page(block(name="plain")), walk_page(block(name=EVIL)))


def test_tiles_answer_what_is_sent_and_held():
    with_sp, without = (
        {tile.question: tile.answer for tile in walk_page(walk).tiles}
        for walk in (WALKS["tp-sp"], block(sequence_parallel=False))
    )
    assert with_sp["What is sent, forward?"] == "2 all-gathers, 2 reduce-scatters"
    assert without["What is sent, forward?"] == "2 all-reduces"
    assert with_sp["Is anything held twice at rest?"] == "Nothing"
    assert "X" in without["Is anything held twice at rest?"].split(", ")


def test_a_recorder_refuses_what_nobody_can_do():
    tensor = WalkTensor("T", "", "data", 1, 2, 8.0)
    recorder = Recorder(2, [tensor])
    recorder.make(0, "T", [0], is_term=True)
    recorder.frame("", "", "")
    recorder.send(0, 1, "T", [1])
    with pytest.raises(KeyError):
        recorder.frame("", "", "")
    recorder = Recorder(2, [tensor])
    recorder.make(0, "T", [0], is_term=True)
    recorder.frame("", "", "")
    recorder.send(0, 1, "T", [0])
    recorder.frame("", "", "")
    recorder.send(0, 1, "T", [0], adds=True)
    with pytest.raises(ValueError, match="twice"):
        recorder.frame("", "", "")


def test_terms_and_whole_numbers_are_not_mixed():
    tensor = WalkTensor("T", "", "data", 1, 1, 8.0)
    for first in (True, False):
        recorder = Recorder(1, [tensor])
        recorder.make(0, "T", [0], is_term=first)
        recorder.frame("", "", "")
        recorder.make(0, "T", [0], is_term=not first)
        with pytest.raises(ValueError, match="something else"):
            recorder.frame("", "", "")


def test_bytes_held_count_what_arrives():
    tensor = WalkTensor("T", "", "data", 1, 2, 8.0)
    recorder = Recorder(2, [tensor])
    for member in (0, 1):
        recorder.make(member, "T", [member])
    recorder.frame("", "", "")
    recorder.send(0, 1, "T", [0])
    recorder.drop(1, "T", [1])
    recorder.frame("", "", "")
    assert recorder.frames[1].held_bytes == (8.0, 16.0)
    assert recorder.frames[1].sent_bytes == (8.0, 0.0)
    assert [group.parts for group in recorder.frames[1].held[1]] == [(0,)]


def test_neighbours_of_a_ring_stand_together():
    for size in range(4, 10):
        members = loop_of([str(number) for number in range(size)])
        for one, other in zip(members, (*members[1:], members[0]), strict=True):
            assert abs(one.column - other.column) + abs(one.row - other.row) == 1 or size % 2
