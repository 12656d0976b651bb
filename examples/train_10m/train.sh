#!/bin/sh
# From nothing to a trained model of 10 M parameters on four CPU processes.
set -e
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
torchrun --nproc-per-node 4 -m meshwright measure --quick --out machine.yaml
meshwright plan config.json --workload workload.yaml --on machine.system.yaml \
  --calibration machine.yaml --out plan.json
meshwright run plan.json --check --dtype fp64
meshwright run plan.json --scale full --steps 30
