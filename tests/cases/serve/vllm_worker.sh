export REPLICAS=3
vllm serve "$MODEL" -tp 1 --max-num-seqs 4 --max-model-len 8193 \
    --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
