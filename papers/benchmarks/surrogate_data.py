"""Draws, simulates and writes the data set of the learned cost model, and trains it anew.

Run: python papers/benchmarks/surrogate_data.py --seed 1 --write

Each group is kept in the folder of ``--parts`` as soon as it is simulated, so that a run that was
stopped goes on where it was. ``--train-only`` takes the shipped rows. Without ``--write`` nothing
of the package is changed.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from meshwright.cost.step import price_columns
from meshwright.wafer.price import choice_network, physical_network
from meshwright_papers.surrogate.dataset import (
    NUM_GROUPS,
    QUANTITIES,
    ROWS_FILE,
    Rows,
    draw_group,
    joined_rows,
    measure,
    read_rows,
    rows_of,
    shipped_rows,
    write_rows,
)
from meshwright_papers.surrogate.estimator import Score, Surrogate, predicted, score, tuned_scores
from meshwright_papers.surrogate.features import features
from meshwright_papers.surrogate.network import (
    WEIGHTS_FILE,
    Network,
    regression,
    train_network,
    write_network,
)
from meshwright_papers.surrogate.sampling import Drawn

STEP = QUANTITIES.index("step_s")
SPEED_SEED = 3


def main() -> None:
    """Draw, simulate, train, tell, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=NUM_GROUPS)
    parser.add_argument("--parts", type=Path, default=Path(tempfile.gettempdir()) / "surrogate")
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows = shipped_rows() if asked.train_only else generate(asked.seed, asked.groups, asked.parts)
    print(f"{len(rows)} rows in {len(np.unique(rows.group))} groups; {rows.provenance}")
    if asked.write and not asked.train_only:
        write_rows(rows, ROWS_FILE)
    train(rows, is_written=asked.write)


def generate(seed: int, num_groups: int, parts: Path) -> Rows:
    """Return the rows of all groups; those that lie in the folder are not simulated again."""
    found, started = [], time.process_time()
    for number in range(num_groups):
        path = parts / f"seed{seed}-group{number}.npz"
        if not path.exists():
            write_rows(rows_of(seed, number), path)
            print(f"group {number}: {time.process_time() - started:.0f} CPU s", flush=True)
        found.append(read_rows(path))
    made = {
        "seed": seed,
        "command": f"python papers/benchmarks/surrogate_data.py --seed {seed} --write",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    return joined_rows(found, made)


def train(rows: Rows, *, is_written: bool) -> None:
    """Train on the training groups; print scores on test groups, and what a look-up takes."""
    taught = rows.take(rows.is_training)
    test = rows.take(~rows.is_training)
    started = time.process_time()
    network = train_network(taught)
    print(f"trained on {len(taught)} rows in {time.process_time() - started:.0f} CPU s")
    made = {
        "training_groups": np.unique(taught.group).tolist(),
        "rows": rows.provenance,
        "scikit-learn": version("scikit-learn"),
    }
    if is_written:
        write_network(replace(network, provenance=made), WEIGHTS_FILE)
    models = {"closed form": None, "regression": regression(taught), "network": network}
    for name, model in models.items():
        tell(name, score(predicted(test, model), test))
    contended = np.abs(test.contended_s / test.simulated[:, STEP] - 1.0)
    print(f"contention alone, step: {contended.mean():.2%}, p95 {np.percentile(contended, 95):.2%}")
    before, after, num = tuned_scores(test, network)
    print(f"tuned on six rows of each test group, scored on the {num} others:")
    tell("before", before)
    tell("after", after)
    look_up(network)


def tell(name: str, scores: Mapping[str, Score]) -> None:
    """Print the score of each quantity."""
    cells = [
        f"{quantity} r {found.correlation:.4f}, mean {found.mean_error:.2%}, "
        f"p95 {found.p95_error:.2%}"
        for quantity, found in scores.items()
    ]
    print(f"{name:<12}" + "; ".join(cells))


def look_up(network: Network) -> None:
    """Print what each way to price a placed plan takes, a row: alone, and in columns."""
    group = draw_group(SPEED_SEED, 0)
    surrogate = Surrogate(group.asked.problem, network)
    for num in (1, 16, 4096):
        ways = ways_of(surrogate, group.drawn[0], num)
        cells = [f"{name} {seconds(way) / num * 1e6:.1f} us" for name, way in ways.items()]
        print(f"{num} rows at once, each: " + ", ".join(cells))
    physical = physical_network(group.asked.problem)
    taken = [seconds(partial(measure, group.asked, drawn, physical), 1) for drawn in group.drawn]
    print(f"simulated, {len(taken)} plans: {np.mean(taken) * 1e6:.0f} us each")


def ways_of(surrogate: Surrogate, drawn: Drawn, num: int) -> dict[str, Callable[[], object]]:
    """Return the parts of a look-up of so many placements at once."""
    problem, plan_options = surrogate.problem, drawn.plan_options
    places = choice_network(problem, [(drawn.strategy, [drawn.choice] * num)])
    alone = price_columns(problem, plan_options, places.strategy, places)
    bare = price_columns(surrogate.bare, plan_options, places.strategy, places)
    table = features(problem, places, alone, bare)
    return {
        "closed form": partial(price_columns, problem, plan_options, places.strategy, places),
        "features": partial(features, problem, places, alone, bare),
        "network": partial(surrogate.learned.log_ratio, table),
    }


def seconds(way: Callable[[], object], least: int = 3) -> float:
    """Return the least CPU time of some calls, after one that is not counted [s]."""
    way()
    found = []
    while len(found) < least or (sum(found) < 0.5 and least > 1):
        started = time.process_time()
        way()
        found.append(time.process_time() - started)
    return min(found)


if __name__ == "__main__":
    main()
