set -ex
NGPU=${NGPU:-"8"}
LOG_RANK=${LOG_RANK:-0}
PYTORCH_ALLOC_CONF="expandable_segments:True" \
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" \
  --local-ranks-filter ${LOG_RANK} --role rank --tee 3 \
  -m torchtitan.train --module qwen3 --config qwen3_14b \
  --parallelism.tensor_parallel_degree 2 --parallelism.context-parallel-degree=2 \
  --training.seq_len 16384 --training.local_batch_size=1 --training.disable_cuda_graphs "$@"
