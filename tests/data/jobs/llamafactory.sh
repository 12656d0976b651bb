#!/bin/bash
# two hosts, the same command on each
FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=${RANK:-0} MASTER_ADDR=10.0.0.1 \
    llamafactory-cli train examples/llamafactory_sft.yaml
