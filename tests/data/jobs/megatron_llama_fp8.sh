#!/usr/bin/env bash
set -euo pipefail
MODEL_SIZE=${MODEL_SIZE:-70B}
case $MODEL_SIZE in
  8B) NL=32; H=4096; F=14336; NH=32; TP=1; PP=1;;
  70B) NL=80; H=8192; F=28672; NH=64; TP=8; PP=4;;
esac
NNODES=${SLURM_NNODES:-4}
ARGS="--use-mcore-models --transformer-impl transformer_engine --num-layers $NL --hidden-size $H --ffn-hidden-size $F
 --num-attention-heads $NH --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192
 --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0 --swiglu --normalization RMSNorm --norm-epsilon 1e-5
 --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 --no-bias-swiglu-fusion
 --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-70B --make-vocab-size-divisible-by 128"
PAR="--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --context-parallel-size 1 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap --distributed-timeout-minutes 60"
FP8="--fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 1024 --fp8-amax-compute-algo max --fp8-param-gather"
[[ ${USE_FP8:-1} -eq 1 ]] && ARGS="$ARGS $FP8"
torchrun --nproc-per-node=8 --nnodes=$NNODES --rdzv-id=$RANDOM --rdzv-backend=c10d pretrain_gpt.py $ARGS $PAR --bf16 --micro-batch-size 1 --global-batch-size 128 --train-iters 1000 --lr 1e-4 --log-throughput --manual-gc --empty-unused-memory-level 1 --no-load-optim --no-load-rng --enable-experimental --cross-entropy-loss-fusion --cross-entropy-fusion-impl te
