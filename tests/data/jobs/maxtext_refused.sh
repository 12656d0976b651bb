python MaxText/train.py MaxText/configs/base.yml model_name=gemma2-27b per_device_batch_size=1 ici_fsdp_parallelism=8 dcn_data_parallelism=1 \
 remat_policy=custom mlpwi_0=device mlpwi_1=remat max_target_length=8192
