python3 -m maxtext.trainers.pre_train.train model_name=llama2-7b hardware=gpu \
    max_target_length=2048 per_device_batch_size=16 scan_layers=false \
    ici_fsdp_parallelism=4 ici_pipeline_parallelism=2 remat_policy=full dtype=bfloat16 $PARTS
