python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=llama3-8b \
  per_device_batch_size=1 max_target_length=8192 remat_policy=full ici_fsdp_parallelism=4 \
  ici_tensor_parallelism=2 dcn_data_parallelism=1
