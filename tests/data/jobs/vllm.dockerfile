ARG VERSION=latest
FROM vllm/vllm-openai:${VERSION}
ENV LENGTH=8192
RUN pip install hf_transfer && \
    mkdir /weights
ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]
CMD ["--model", "Qwen/Qwen2.5-32B", "--max-model-len", "${LENGTH}", \
     "--max-num-seqs", "64", "--tensor-parallel-size", "2"]
