deepspeed --num_gpus 8 --num_nodes 2 run_clm.py \
  --model_name_or_path meta-llama/Llama-2-7b-hf \
  --dataset_name wikitext --do_train --bf16 True \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --gradient_checkpointing True \
  --block_size 4096 --learning_rate 2e-5 --max_steps 1000 --output_dir out --deepspeed ds_zero3_offload.json --optim adamw_torch
