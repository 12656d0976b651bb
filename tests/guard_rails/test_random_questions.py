"""Random questions of all rooms break no law; the campaign by hand asks more of them."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def campaign():
    """Return the names of the script."""
    return runpy.run_path(str(FOLDER / "audit_campaign.py"), run_name="campaign")


def broken(seeds, *rooms):
    """Return by seed the laws that its answer breaks."""
    script = campaign()
    chosen = {name: script["ROOMS"][name] for name in rooms or script["ROOMS"]}
    found = {seed: script["ask"](seed, chosen)[1] for seed in seeds}
    return {
        seed: text for seed, text in found.items()
        if text and not text.startswith(("refused", "nothing fits"))
    }  # fmt: skip


def test_stated_strategies_and_ways_to_serve_break_no_law():
    assert broken(range(11, 15), "estimate") == {}
    assert broken(range(21, 25), "estimate", "partition") == {}
    assert broken(range(1, 5), "serve") == {}


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 1000, 100))
def test_random_questions_break_no_law(start):
    assert broken(range(10_000 + start, 10_100 + start)) == {}
