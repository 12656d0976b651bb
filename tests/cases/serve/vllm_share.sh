vllm serve meta-llama/Meta-Llama-3.1-405B-Instruct-FP8 -tp 8 --max-num-seqs 1 \
    --gpu-memory-utilization ${SHARE} --max-model-len 131072
