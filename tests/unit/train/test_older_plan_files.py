"""Plan files of earlier versions are read as the same plan."""

import json

import meshwright as mw
from meshwright.train.plan_file import from_json, to_json


def test_a_strategy_in_a_list_of_segments_is_the_same_strategy():
    plan = mw.estimate("gpt2-medium", on="8xH100", seq=1024, global_batch=16, tp=2, zero=1)
    data = json.loads(to_json(plan))
    best = data["best"]
    strategy, plan_options = best.pop("strategy"), best.pop("plan_options")
    best["segments"] = [
        {"first_layer": 0, "last_layer": 23, "strategy": strategy, "structure": plan_options}
    ]
    best["estimate"]["time_parts_s"].pop("throttle_s")
    read = from_json(json.dumps(data))
    assert read.best.strategy.tp == 2.0
    assert read.best == plan.best
