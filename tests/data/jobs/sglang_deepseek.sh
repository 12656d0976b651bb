python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --trust-remote-code --max-running-requests 64 --context-length 16384 --mem-fraction-static 0.85 --host 0.0.0.0
