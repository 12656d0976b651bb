python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=mixtral-8x7b per_device_batch_size=4 \
 max_target_length=4096 ici_fsdp_parallelism=16 ici_expert_parallelism=4 dcn_data_parallelism=1 remat_policy=full \
 base_output_directory=gs://b run_name=x dataset_type=synthetic steps=10 attention=flash megablox=True sparse_matmul=True capacity_factor=-1
