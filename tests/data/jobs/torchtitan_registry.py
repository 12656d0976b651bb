from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

SEQUENCE = 4 * 1024
HOSTS = 16


def base(flavor: str, *, tp: int = 1) -> Trainer.Config:
    return Trainer.Config(
        hf_assets_path=f"./assets/hf/{flavor}",
        model_spec=model_registry(flavor),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=2, seq_len=SEQUENCE, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=tp),
        checkpoint=CheckpointManager.Config(interval=500),
        activation_checkpoint=SelectiveAC.Config(),
    )


def mine_8b() -> Trainer.Config:
    return base("8B")


def mine_70b() -> Trainer.Config:
    config = base("70B", tp=8)
    config.activation_checkpoint = FullAC.Config()
    config.compile = CompileConfig(enable=True, components=["model", "loss"])
    config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config()])
    if HOSTS > 8:
        config.parallelism.pipeline_parallel_degree = HOSTS // 8
        config.parallelism.pipeline_parallel_schedule = "1F1B"
        config.training.local_batch_size *= 8
    return config
