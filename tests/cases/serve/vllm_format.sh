vllm serve ${NAME} --max-num-seqs 8 --max-model-len 4096
