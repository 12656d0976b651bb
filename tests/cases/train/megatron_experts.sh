torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 27 --hidden-size 2048 \
  --num-attention-heads 16 --ffn-hidden-size 10944 --moe-ffn-hidden-size 1408 --num-experts 64 \
  --moe-router-topk 6 --moe-shared-expert-intermediate-size 2816 --moe-grouped-gemm \
  --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --position-embedding-type rope --vocab-size 102400 --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \
  --bf16 --sequence-parallel --tensor-model-parallel-size ${TP} ${MORE}
