"""How long a whole answer takes on wafers: search, placement, routes, limits and robustness.

    python papers/benchmarks/wafer_plans.py [--small]

CPU seconds of this process, one core. The first case is run before, so that kernels are loaded.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from functools import partial

from meshwright.train.question import training
from meshwright.wafer.training import plan as plan_training
from meshwright_papers.studies.temp.solver import timed

CASES = (
    ("gpt3-76b", "wafer-6x8", 128), ("gpt3-76b", "wafer-8x8", 128), ("gpt3-76b", "wafer-8x10", 128),
    ("gpt3-175b", "4xwafer-8x8", 256), ("gpt3-175b", "16xwafer-8x8", 1024),
)  # fmt: skip
SMALL = (("gpt3-6.7b", "wafer-4x4", 32),)


def main() -> None:
    cases = SMALL if "--small" in sys.argv else CASES
    asked = [
        partial(
            plan_training, model, system,
            training(system, sequence_length=2048, global_batch_size=batch),
        )
        for model, system, batch in cases
    ]  # fmt: skip
    asked[0]()
    print(f"{'case':<26}{'plan':>10}{'candidates':>14}{'step':>10}{'above bound':>13}")
    for (model, system, _), ask in zip(cases, asked, strict=True):
        plan, taken_s = timed(ask)
        step_s, cover = plan.best.estimate.step_time_s, plan.coverage
        print(
            f"{model + ' ' + system:<26}{taken_s:>8.2f} s{cover.num_candidates:>14,}"
            f"{step_s:>8.3f} s{step_s / cover.lower_bound_s - 1.0:>13.1%}"
        )


if __name__ == "__main__":
    main()
