#!/usr/bin/env bash
# Megatron-LM (megatron-core 0.19.2), written by meshwright 0.1.0
# model: qwen3-30b-a3b
# system: 64xH100 (64 x H100)
# plan: tp1 pp4 vpp2 cp1 dp16 ep16 mbs1, zero1, interleaved, ep_overlap, recompute=none
# step: 1.6 s (closed_form, calibrated), 55.0 GiB on the fullest device
# batch: 256 sequences of 4096 tokens, 16 micro-batches on each data-parallel rank
# devices: 64, on 8 hosts of 8 processes
# optimizer: priced as megatron-adam, 2 + 4 + 12 bytes per parameter
# add what a plan does not hold (data, learning rate, rotary base, epsilon), as in
#   pretrain_gpt.sh --mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 50
# planned with: mw.estimate('qwen3-30b-a3b', on='64xH100', seq=4096, global_batch=256, tp=1, pp=4, ep=16, mbs=1, vpp=2, ep_overlap=True, framework='megatron')
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nnodes=8 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint="${HEAD_ADDRESS:?the first host}:29500" pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 4 \
    --context-parallel-size 1 \
    --expert-model-parallel-size 16 \
    --expert-tensor-parallel-size 1 \
    --overlap-moe-expert-parallel-comm \
    --num-virtual-stages-per-pipeline-rank 2 \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --micro-batch-size 1 \
    --global-batch-size 256 \
    --seq-length 4096 \
    --bf16 \
    --attention-backend flash \
    --attention-dropout 0.0 \
    --hidden-dropout 0.0 \
    --num-layers 48 \
    --hidden-size 2048 \
    --ffn-hidden-size 768 \
    --num-attention-heads 32 \
    --kv-channels 128 \
    --group-query-attention \
    --num-query-groups 4 \
    --qk-layernorm \
    --max-position-embeddings 4096 \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --swiglu \
    --disable-bias-linear \
    --untie-embeddings-and-output-weights \
    --vocab-size 151936 \
    --num-experts 128 \
    --moe-router-topk 8 \
    --moe-ffn-hidden-size 768 \
    --moe-layer-freq '([1]*48)' \
    --moe-grouped-gemm \
    --moe-token-dispatcher-type alltoall \
    "$@"
