python -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --tp-size 8 --dp-size 8 --ep-size 8 \
    --enable-dp-attention --max-running-requests 512 --context-length 4096
