"""The front of a sweep from some of its points: equal to that of all, whatever the bounds say."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.front import BEATEN, beaten, front_names, front_of, run_front
from meshwright.sweep.questions import QUESTIONS
from meshwright.sweep.run import run
from meshwright.sweep.stores import SqliteStore


def on_front(costs):
    """Return the points of a front, one by one."""
    return {
        at for at, cost in enumerate(costs)
        if not any((other <= cost).all() and (other < cost).any() for other in costs)
    }  # fmt: skip


AMOUNTS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
    min_size=1, max_size=60,
)  # fmt: skip


@given(AMOUNTS, st.integers(1, 8))
def test_no_point_of_the_front_is_ever_beaten_by_a_bound(drawn, at_once):
    costs = np.array([[a, b] for a, b, _, _ in drawn], dtype=float)
    least = costs - np.array([[c, d] for _, _, c, d in drawn])
    asked = []

    def ask(places):
        asked.extend(places.tolist())
        return costs[places]

    lost = beaten(least, ask, at_once)
    assert sorted([*asked, *np.flatnonzero(lost)]) == list(range(len(drawn)))
    assert on_front(costs) <= set(asked)


def test_one_point_beats_what_its_bounds_show():
    """Point 0 costs 4 at a bound of 3. Bounds of 4 may tie with it, one of 5 does not."""
    asked = []

    def ask(places):
        asked.extend(places.tolist())
        return np.array([[4.0], [4.0], [5.0]])[places]

    assert beaten(np.array([[3.0], [4.0], [5.0]]), ask, 1).tolist() == [False, False, True]
    assert asked == [0, 1]


def grid(*sides):
    """Return devices, rates and link rates of designs, each with the time and a bound of it."""
    devices, rate, link = (side.reshape(-1) for side in np.meshgrid(*sides, indexing="ij"))
    least_s = 1e4 / (devices * rate)
    return devices, least_s, least_s + 20.0 / (rate * link)


@pytest.mark.parametrize(
    ("number", "most"), [(10, 0.2), pytest.param(100, 0.02, marks=pytest.mark.slow)]
)
def test_a_grid_has_the_front_of_all_its_points(number, most):
    """10 or 100 kinds of chip, as many links, as many sizes: 10^3, and 10^6 points."""
    devices, least_s, time_s = grid(
        np.arange(1, number + 1), np.linspace(1, 40, number), np.linspace(1, 40, number)
    )
    least, costs = np.stack([least_s, devices], axis=1), np.stack([time_s, devices], axis=1)
    asked = []

    def ask(places):
        asked.extend(places.tolist())
        return costs[places]

    lost = beaten(least, ask)
    # The fastest chip with the fastest links is the front, once for each number of devices.
    fastest = [np.flatnonzero(devices == n)[np.argmin(time_s[devices == n])] for n in set(devices)]
    assert set(fastest) <= set(asked)
    assert not lost[fastest].any()
    assert len(asked) <= most * len(devices)


def test_points_that_are_not_asked_say_so(tmp_path):
    points = [{"devices": n, "rate": rate} for n in (1, 2, 4) for rate in (1.0, 3.0, 9.0)]

    def answer(point):
        return {"status": "found", "step_time_s": 2.0 / (point["devices"] * point["rate"])}

    def bound(point):
        return {"step_time_s": 1.0 / (point["devices"] * point["rate"])}

    names = ("step_time_s", "devices")
    with SqliteStore(tmp_path / "kept.db") as store:
        found = run_front(
            names, points, bound, lambda some: run("plan", answer, some, store, version="0")
        )
        again = run_front(
            names, points, bound,
            lambda some: run("plan", answer, some, store, version="0", seconds=0.0),
        )  # fmt: skip
    assert found.is_complete
    assert again == found.__class__(found.points, found.results, 0)
    assert found.results.count(BEATEN) + found.num_new == len(points)
    assert found.results.count(BEATEN) > 0
    records = [{**point, **result} for point, result in zip(points, found.results, strict=True)]
    assert [(one["devices"], one["rate"]) for one in front_of(names, records)] == [
        (4, 9.0), (2, 9.0), (1, 9.0)
    ]  # fmt: skip


SWEEP = SweepSpec(
    name="x", ask="plan", fixed={"model": "gpt2-medium", "seq": 512},
    vary={"on": ("8xA100", "8xH100"), "global_batch": (8, 64)},
)  # fmt: skip


def test_names_without_a_bound_are_refused():
    bounded = QUESTIONS["plan"].bounded
    assert front_names("tokens_per_s,global_batch", SWEEP, bounded) == (
        "tokens_per_s", "global_batch",
    )  # fmt: skip
    for name in ("power_w", "on", "seq", "mfu"):
        with pytest.raises(SpecError, match=f"--front: '{name}' has no bound"):
            front_names(f"tokens_per_s,{name}", SWEEP, bounded)


@pytest.mark.slow
def test_a_sweep_of_plans_has_the_front_of_all_its_points(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: x\nask: plan\nfixed: {model: gpt2-medium, seq: 512}\n"
        "vary: {on: [8xA100, 8xH100, 16xA100], global_batch: [8, 16, 64]}\n"
    )
    out = ["--out", str(tmp_path / "kept.db"), "--json"]
    names = ["tokens_per_s", "global_batch"]
    assert main(["sweep", str(path), "--front", ",".join(names), *out]) == 0
    some = json.loads(capsys.readouterr().out)
    assert main(["sweep", str(path), *out]) == 0
    every = json.loads(capsys.readouterr().out)
    assert some["front"] == front_of(names, every["points"])
    assert every["front"] == []
    for point, one in zip(every["points"], some["points"], strict=True):
        bound = QUESTIONS["plan"].bound(
            {name: point[name] for name in ("on", "global_batch", "model", "seq")}
        )
        assert point["tokens_per_s"] <= bound["tokens_per_s"]
        assert one == point or one["status"] == "beaten"
