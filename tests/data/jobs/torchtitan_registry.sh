#!/usr/bin/bash
#SBATCH --nodes=16
#SBATCH --gpus-per-node=8
srun torchrun --nnodes 16 --nproc_per_node 8 -m torchtitan.train \
  --module my_team.torchtitan_registry --config mine_70b \
  --parallelism.context_parallel_degree 2
