read -r -d '' COMMAND <<EOF
openrlhf.cli.train_sft --max_len 4096 --dataset Open-Orca/OpenOrca --input_key question \
   --output_key response --train_batch_size 256 --micro_train_batch_size 2 \
   --pretrain meta-llama/Meta-Llama-3-8B --zero_stage 2 --max_epochs 1 --packing_samples \
   --bf16 --flash_attn --gradient_checkpointing
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $COMMAND
fi
