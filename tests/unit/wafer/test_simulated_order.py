"""The order of leading candidates on a grid, as their simulated steps decide it."""

import meshwright as mw
from meshwright.wafer import training


def test_candidates_behind_are_simulated_while_their_price_is_below_the_least_step(monkeypatch):
    """Two leaders take 1.2 of their price; each one behind takes its price, and none above it."""
    seen = []

    def simulated_s(asked):
        priced_s = asked[2].time_s
        seen.append(priced_s)
        return (1.2 if len(seen) <= 2 else 1.0) * priced_s

    monkeypatch.setattr(training, "_simulated_s", simulated_s)
    found = mw.plan("gpt2-medium", on="wafer-2x2", seq=1024, global_batch=8, simulated=2)
    least_s = min(1.2 * min(seen[:2]), *seen[2:3])
    assert len(seen) == 3
    assert seen[2] < 1.2 * min(seen[:2])
    assert found.best.simulated_s == least_s == found.best.estimate.step_time_s
    assert found.proof.startswith("leads by its simulated step") or least_s == min(seen)
