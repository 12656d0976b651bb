#!/usr/bin/env bash
start() {
    local devices=$1 port=$2
    CUDA_VISIBLE_DEVICES=$devices nohup vllm serve Qwen/Qwen2.5-32B --tensor-parallel-size 4 \
        --max-model-len 8192 --max-num-seqs 64 --port "$port" > "server_$port.log" 2>&1 &
}
start 0,1,2,3 8000
start 4,5,6,7 8001
until curl -sf http://localhost:8000/health; do sleep 2; done
vllm bench serve --model Qwen/Qwen2.5-32B --num-prompts 100
