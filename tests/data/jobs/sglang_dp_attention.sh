#!/bin/bash
python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --ep 8 \
    --enable-dp-attention --max-running-requests 512 --trust-remote-code
