case "${SCALE:-8B}" in
    8B) TP=4 LAYERS=56 ;;
    *) echo "unknown"; exit 1 ;;
esac
OPTIONS=" \
    --tensor-model-parallel-size ${TP} --sequence-parallel --num-layers ${LAYERS} \
    --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5 --position-embedding-type none \
    --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec \
    --seq-length 4096 --micro-batch-size 4 --global-batch-size 8 --bf16"
torchrun --nproc_per_node 8 pretrain_mamba.py ${OPTIONS}
