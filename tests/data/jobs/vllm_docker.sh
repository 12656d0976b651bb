MODEL=${MODEL:-Qwen/Qwen3-30B-A3B}
docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:latest vllm serve "$MODEL" --enable-expert-parallel --data-parallel-size 4 \
  --max-model-len 32k --max-num-seqs 256 --enforce-eager
