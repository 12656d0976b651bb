#!/usr/bin/env bash
# torchtitan 0.3.0, written by meshwright 0.1.0
# model: train_10m
# system: 4xA100 (4 x A100)
# plan: tp1 pp1 cp1 dp4 mbs4, zero3 no-reshard, recompute=none
# step: 48.4 ms (closed_form, calibrated), 7.2 GiB on the fullest device
# batch: 16 sequences of 256 tokens, 1 micro-batches on each data-parallel rank
# devices: 4, on 1 host of 4 processes
# optimizer: priced as adam-fp32, 4 + 4 + 8 bytes per parameter
# tokenizer, data, learning rate and steps are those of the configuration
# planned with: meshwright plan config.json --workload workload.yaml --on 4xA100 --dp 4 --zero 3 --mbs 4 --recompute none --out torchtitan.json
set -euo pipefail
export PYTHONPATH="$(cd "$(dirname "$0")" && pwd)${PYTHONPATH:+:$PYTHONPATH}"
torchrun --nnodes=1 --nproc-per-node=4 -m torchtitan.train \
    --module torchtitan_model \
    --config train \
    --parallelism.data_parallel_replicate_degree 1 \
    --parallelism.data_parallel_shard_degree 4 \
    --parallelism.fsdp_reshard_after_forward never \
    --parallelism.tensor_parallel_degree 1 \
    --parallelism.spmd_backend partial_dtensor \
    --parallelism.context_parallel_degree 1 \
    --parallelism.expert_parallel_degree 1 \
    --parallelism.pipeline_parallel_degree 1 \
    --training.local_batch_size 4 \
    --training.global_batch_size 16 \
    --training.seq_len 256 \
    --training.mixed_precision_param float32 \
    --training.disable_cuda_graphs \
    --compile.no-enable \
    --compile.no-enable_async_tensor_parallel \
    --loss.num_chunks 8 \
    "$@" \
    activation-checkpoint:none
