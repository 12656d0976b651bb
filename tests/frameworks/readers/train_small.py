"""The dense model of a configuration under plain DDP; prints seconds of a step."""

import statistics
import sys
import time

import torch
from torch import nn
from torch.distributed import barrier, destroy_process_group, get_rank, init_process_group
from torch.nn import functional

from meshwright.catalog.models import load_model
from meshwright.run.model import dense

LENGTH = 512
RUNS = 8


def main():
    spec = load_model(sys.argv[1])
    init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(dense(spec))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    times = []
    for _ in range(RUNS):
        tokens = torch.randint(spec.vocab_size, (1, LENGTH + 1))
        barrier()
        start = time.perf_counter()
        scores = model(tokens[:, :-1]).flatten(0, 1)
        functional.cross_entropy(scores, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        barrier()
        times.append(time.perf_counter() - start)
    if get_rank() == 0:
        sys.stdout.write(f"{statistics.median(times[2:])}\n")
    destroy_process_group()


main()
