"""A model of 1T parameters on 1,024 chips: every degree, tile, micro-batch and network, proven.

    python papers/benchmarks/trillion_search.py [--small]

Rules and chips of DFModel (Ko et al. 2024, arXiv 2412.16432), which states 20 minutes on 64 CPUs
for this search, and whose log for one layer on eight chips ends after 107.7 s on 128 threads with a
gap of 7 %: recorded, not run here. CPU seconds of this process, one core.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from meshwright_papers.studies.dfmodel.trillion import NETWORKS, search


def main() -> None:
    print(f"{'network':<12}{'cases':>7}{'fused':>7}{'search':>10}{'samples/s':>11}  best")
    for network in list(NETWORKS)[:1] if "--small" in sys.argv else (None, *NETWORKS):
        found = search(network)
        case = found.case
        print(
            f"{network or 'any':<12}{found.num_cases:>7}{found.num_fused:>7}"
            f"{found.search_s:>8.1f} s{found.samples_per_s:>11.2f}  {case.network} tp{case.tp} "
            f"pp{case.pp} dp{case.dp}, tile {case.tile}, micro-batch {case.micro_batch}"
        )


if __name__ == "__main__":
    main()
