#!/bin/sh
# From nothing to a trained model of 10 M parameters on four CPU processes.
set -e
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
strategy="--dp 4 --zero 3 --mbs 4 --recompute none"
torchrun --nproc-per-node 4 -m meshwright measure --quick --out machine.yaml
meshwright plan config.json --workload workload.yaml --on machine.system.yaml \
  --calibration machine.yaml $strategy --out plan.json
meshwright run plan.json --check --dtype fp64
meshwright run plan.json --scale full --steps 30
# The same plan as a job of torchtitan, on four GPUs.
meshwright plan config.json --workload workload.yaml --on 4xA100 $strategy --out torchtitan.json
meshwright export torchtitan.json torchtitan --out torchtitan
