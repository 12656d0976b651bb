"""A few-layer transformer of PyTorch's own modules under plain DDP; prints seconds of a step."""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed import barrier, destroy_process_group, get_rank, init_process_group
from torch.nn import functional

LENGTH = 512
RUNS = 8


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x, cosine, sine):
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn):
        super().__init__()
        self.heads = heads
        self.before, self.between = Norm(hidden), Norm(hidden)
        self.query, self.key, self.value, self.output = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cosine, sine):
        y = self.before(x)
        batch, length, _ = y.shape
        query, key, value = (
            part(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, -1))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.embedding = nn.Embedding(config["vocab_size"], hidden)
        self.blocks = nn.ModuleList(
            Block(hidden, heads, config["intermediate_size"])
            for _ in range(config["num_hidden_layers"])
        )
        self.norm = Norm(hidden)
        self.head = nn.Linear(hidden, config["vocab_size"], bias=False)
        size = hidden // heads
        angles = torch.outer(
            torch.arange(LENGTH).float(), 1e4 ** (-torch.arange(0, size, 2) / size)
        )
        self.angles = torch.cat((angles, angles), -1)

    def forward(self, tokens):
        x, cosine, sine = self.embedding(tokens), self.angles.cos(), self.angles.sin()
        for block in self.blocks:
            x = block(x, cosine, sine)
        return self.head(self.norm(x))


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model(config))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    times = []
    for _ in range(RUNS):
        tokens = torch.randint(config["vocab_size"], (1, LENGTH + 1))
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
