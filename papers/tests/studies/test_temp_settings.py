"""Claims under settings: which one holds, which one is nearest, and what is read off a setting."""

from types import SimpleNamespace

import pytest

from meshwright_papers.studies.study import Claim, Verdict
from meshwright_papers.studies.temp.settings import (
    SETTINGS,
    Setting,
    claim_under,
    gain,
    memory,
    saving,
    speedup,
)
from meshwright_papers.studies.temp.setup import OURS
from meshwright_papers.studies.temp.throughput import PUBLISHED_CUT

CLAIM = Claim("Fig. 0", "something", "1.2x", "seed", "", Verdict.DIFFERS, "")


def under(figures):
    return claim_under(
        CLAIM, figures, lambda found: found[0] > 1.1, (1.2,), lambda found: f"{found[0]}x"
    )


def test_a_claim_names_every_setting_under_which_it_holds():
    found = under({"a": (1.0,), "b": (1.15,), "c": (1.3,), "d": None})
    assert found.verdict is Verdict.UNDER_A_SETTING
    assert found.ours == "1.15x under: b; 1.3x under: c"


def test_a_claim_that_never_holds_names_the_nearest_setting():
    found = under({"a": (1.0,), "b": (1.05,), "c": None})
    assert found.verdict is Verdict.DIFFERS
    assert found.ours == "nearest 1.05x under: b"
    assert "none of 3 settings" in found.why
    assert under({"c": None}).ours == "no setting gives a figure"


def entry(step_s, memory_bytes, exposed_s=0.0):
    parts = dict.fromkeys(("cp_comm_s", "dp_comm_s", "pp_comm_s", "tatp_stream_s"), 0.0)
    price = SimpleNamespace(
        step_time_s=step_s,
        memory_bytes=memory_bytes,
        time_parts_s={**parts, "tp_comm_s": exposed_s},
    )
    return SimpleNamespace(best=SimpleNamespace(estimate=price))


NOTHING = SimpleNamespace(best=None)


def test_what_is_read_off_a_setting():
    """Two models: baselines take twice and eight times as long, then one of them has no plan."""
    first, *others = PUBLISHED_CUT
    small = dict.fromkeys(PUBLISHED_CUT, entry(2.0, 100.0, 4.0))
    large = {**dict.fromkeys(others, entry(8.0, 100.0, 2.0)), first: NOTHING}
    found = {
        "small": {OURS: entry(1.0, 50.0, 1.0), **small},
        "large": {OURS: entry(1.0, 90.0, 1.0), **large},
    }
    assert speedup(found) == pytest.approx(((2.0 + 5 * 4.0) / 6,))
    assert memory(found) == pytest.approx((0.5, 0.7))
    assert saving(first)(found) == pytest.approx((75.0,))
    assert saving(others[0])(found) == pytest.approx((62.5,))
    assert gain(others[0], OURS)(found) == pytest.approx((4.0,))
    assert gain(first, OURS)({"large": found["large"]}) is None


def test_settings_say_what_they_fix():
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert Setting("a", fixed=(("pp", (1,)),)).allowed(tp=[2]) == {"pp": (1,), "tp": [2]}
