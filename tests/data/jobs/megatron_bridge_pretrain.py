import argparse
import logging

from megatron.bridge.recipes.llama import llama3_8b_pretrain_config
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

logger = logging.getLogger(__name__)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--debug", action="store_true")
    return parser.parse_known_args()


def main() -> None:
    args, _ = parse_args()
    cfg = llama3_8b_pretrain_config()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.context_parallel_size = 1
    cfg.model.sequence_parallel = True
    cfg.train.global_batch_size = 64
    cfg.train.train_iters = 10
    cfg.logger.log_interval = 1
    cfg.scheduler.lr_warmup_iters = 2
    if args.debug:
        logger.info("debug")
    logger.info(cfg.to_yaml())
    pretrain(config=cfg, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
