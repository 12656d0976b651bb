#!/bin/bash
# layers by a layout: 61 layers over 16 stages
PR=${PR:-bf16}
LAYOUT='Et*3|(tttt|)*14ttL'
torchrun --nnodes 256 --nproc_per_node 8 pretrain_gpt.py \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 16 --expert-model-parallel-size 64 --expert-tensor-parallel-size 1 \
  --pipeline-model-parallel-layout "$LAYOUT" --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 \
  --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm \
  --num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-layer-freq "([0]*3+[1]*58)" \
  --moe-shared-expert-intermediate-size 2048 --moe-router-enable-expert-bias --moe-router-score-function sigmoid \
  --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-grouped-gemm --moe-token-dispatcher-type flex --moe-enable-deepep \
  --overlap-moe-expert-parallel-comm --vocab-size 129280 --position-embedding-type rope --normalization RMSNorm --swiglu \
  --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8192 --bf16 --${PR} --use-precision-aware-optimizer \
  --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-grads-dtype fp32 --recompute-granularity selective --recompute-modules core_attn layernorm mla_up_proj moe_act
