#!/bin/bash
torchrun --nproc-per-node=8 --nnodes=4 scripts/training/run_recipe.py \
  --recipe qwen3_30b_a3b_pretrain_config \
  train.micro_batch_size=2 model.expert_model_parallel_size=8 logger.log_interval=10
