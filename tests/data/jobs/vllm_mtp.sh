vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 4096 --max-num-seqs 16 --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'
