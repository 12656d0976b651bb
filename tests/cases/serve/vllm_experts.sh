vllm serve /data/Qwen3-Coder-480B-A35B-Instruct-FP8 -dp=8 --enable-expert-parallel \
    --max-num-seqs 1 --max-model-len ${LENGTH}
