deepspeed --num_gpus 1 finetune.py --deepspeed deepspeed_offload.json \
  --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 1 \
  --gradient_accumulation_steps 8 --max_seq_length 1024 --gradient_checkpointing True --bf16 True
