trtllm-serve meta-llama/Llama-3.1-8B --tp_size 2 --max_batch_size 256 --max_num_tokens 8192 --max_seq_len 4096 --backend pytorch --kv_cache_free_gpu_memory_fraction 0.95
