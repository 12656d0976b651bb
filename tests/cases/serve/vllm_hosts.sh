vllm serve meta-llama/Llama-3.1-405B -tp 8 -pp 2 --max-num-seqs 16 --max-model-len 120000
