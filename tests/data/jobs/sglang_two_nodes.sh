python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-405B-Instruct-FP8 --tp 16 --dist-init-addr 10.0.0.1:50000 \
 --nnodes 2 --node-rank ${RANK} --quantization fp8 --kv-cache-dtype fp8_e4m3 --context-length 8192 --max-running-requests 128
