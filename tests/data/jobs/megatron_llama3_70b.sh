#!/usr/bin/env bash
set -euo pipefail
NNODES=${NNODES:-8}
GPUS=${GPUS:-8}
TP=8 PP=4 VPP=5
SEQ=${SEQ:-8192}
MBS=1
GBS=$(( NNODES * GPUS * 4 / 2 ))
OPTS=" --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
if [ "$VPP" -gt 1 ]; then
  OPTS+=" --num-layers-per-virtual-pipeline-stage $((80 / PP / VPP))"
fi
if [[ -n "${EXTRA_FP8:-}" ]]; then
  OPTS+=" --fp8-format hybrid --fp8-amax-history-len 1024"
fi
OPTS+=" --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
OPTS+=" --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
OPTS+=" --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm"
OPTS+=" --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights"
OPTS+=" --attention-dropout 0 --hidden-dropout 0 --seq-length $SEQ --max-position-embeddings $SEQ"
OPTS+=" --micro-batch-size $MBS --global-batch-size $GBS --train-iters 1000 --bf16 --lr 1e-4"
OPTS+=" --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-70B"
OPTS+=" --recompute-granularity full --recompute-method block --recompute-num-layers 2"
CMD="torchrun --nnodes=$NNODES --nproc-per-node=$GPUS pretrain_gpt.py $OPTS"
echo "$CMD"
eval $CMD
