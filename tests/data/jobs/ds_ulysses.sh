cat <<EOT > ds.json
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3}, "sequence_parallel_size": 8}
EOT
deepspeed --hostfile hosts --num_nodes 8 --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json \
  --model_name_or_path meta-llama/Llama-3.1-8B --max_length 131072 --gradient_checkpointing
