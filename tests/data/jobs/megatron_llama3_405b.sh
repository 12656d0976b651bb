#!/bin/bash
srun -N 128 --ntasks-per-node 8 --gpus-per-node h100:8 --container-image nemo python -u pretrain_gpt.py \
  --num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 \
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 131072 \
  --position-embedding-type rope --rotary-base 500000 --use-rope-scaling --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
  --micro-batch-size 1 --global-batch-size 2048 --bf16 --vocab-size 128256 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --num-virtual-stages-per-pipeline-rank 8 \
  --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split \
  --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --tokenizer-type TikTokenizer --lr 8e-5 --train-iters 100
