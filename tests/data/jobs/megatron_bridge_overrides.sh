torchrun --nproc_per_node=8 --nnodes=2 pretrain.py --config-file megatron_bridge.yaml \
   model.tensor_model_parallel_size=8 train.global_batch_size=256 logger.log_interval=10
