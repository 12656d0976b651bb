accelerate launch --num_processes 1 sft.py --model_name_or_path Qwen/Qwen2.5-1.5B \
    --per_device_train_batch_size 2 --max_seq_length 8192 --bf16 --gradient_checkpointing $LOSS
