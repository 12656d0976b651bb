vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 1 --max-model-len 4096 --speculative-config '{"model": "eagle", "num_speculative_tokens": 4}'
