#!/usr/bin/env bash
# One command on each host; what differs between them is its rank.
declare -A WIDTH=([7b]=4096 [13b]=5120)
SIZE=7b
HOSTS=(gpu-a gpu-b gpu-c gpu-d)
work() {
    echo "--micro-batch-size 2 --global-batch-size $1"
}
read -r -d '' MODEL <<'TEXT'
    --num-layers 32 --num-attention-heads 32 --ffn-hidden-size 11008 --seq-length 4096
    --max-position-embeddings 4096 --swiglu --normalization RMSNorm --disable-bias-linear
    --position-embedding-type rope --untie-embeddings-and-output-weights --vocab-size 32000
    --attention-dropout 0 --hidden-dropout 0
TEXT
for ((rank = 0; rank < ${#HOSTS[@]}; rank++)); do
    ssh -n "${HOSTS[$rank]}" "cd /job && python3 -u -m torch.distributed.run --nproc_per_node 8 \
        --nnodes ${#HOSTS[@]} --node_rank $rank pretrain_gpt.py --hidden-size ${WIDTH[$SIZE]} \
        --tensor-model-parallel-size 4 --bf16 --use-distributed-optimizer $(echo $MODEL) $(work 256)" &
done
wait
