vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 -pp 2 --max-model-len 8192 --max-num-seqs 128 --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 --port 8000 --quantization fp8
