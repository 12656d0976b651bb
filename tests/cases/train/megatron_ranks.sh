torchrun --nproc_per_node ${RANKS} pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --swiglu \
  --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights \
  --position-embedding-type rope --vocab-size 32000 --attention-dropout 0 --hidden-dropout 0 \
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 48 \
  --bf16 --sequence-parallel \
  --tensor-model-parallel-size ${TP} --use-distributed-optimizer ${MORE}
