vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8 --max-model-len 4096 --max-num-seqs 16 --speculative-config '{"model": "meta-llama/Llama-3.1-8B-Instruct", "num_speculative_tokens": 4}'
