mpirun -n 8 --allow-run-as-root trtllm-llmapi-launch trtllm-serve Qwen/Qwen3-235B-A22B --tp_size 8 --ep_size 4 --max_batch_size 128 --max_seq_len 8192 \
  --extra_llm_api_options trtllm_options.yaml
