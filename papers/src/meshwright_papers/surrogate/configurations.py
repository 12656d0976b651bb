"""Configurations drawn from a seed: a wafer, a model and a training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.problem import Problem
from meshwright.spec.chip import DType
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training

BASE = "wafer-4x8"
"""The wafer whose die, energies and power stand for all."""
ROWS, COLUMNS = (2, 3, 4, 6), (4, 6, 8)
TORUS_SHARE = 1.0 / 3.0
BANDWIDTH_BYTES_PER_S = (0.5e12, 4e12)
LATENCY_S = (15e-9, 210e-9)
MESSAGE_HALF_BYTES = (0.0, 0.25e6, 1e6, 4e6, 8e6)
HBM_BYTES_PER_S = (0.8e12, 2.4e12)
SRAM_BYTES = (20e6, 160e6)
HEADS = (16, 24, 32, 40, 48, 64, 96)
HEAD_SIZE = 128
GROUPED_HEADS = 8
LAYERS = (12, 16, 24, 32, 40, 48, 64)
VOCABULARIES = (32_000, 51_200, 128_256)
SEQUENCES = (1024, 2048, 4096, 8192)
BATCHES = (8, 16, 32, 64)
INSTANT = 1e9
"""How much faster than a chip one is that computes in no time."""


@dataclass(frozen=True)
class Configuration:
    """What the rows of a group share."""

    problem: Problem
    bare: Problem
    """The same on chips that compute in no time: what is left are the messages."""


def draw_problem(rng: np.random.Generator) -> Problem:
    """Return a drawn wafer, model and step; whether anything fits is not looked at."""
    system, model = draw_system(rng), draw_model(rng)
    work = Training(
        global_batch_size=_one(rng, BATCHES),
        sequence_length=_one(rng, SEQUENCES),
        optimizer=load_optimizer("temp-12"),
    )
    return Problem(model, system, work, load_calibration(system.chip.family))


def draw_system(rng: np.random.Generator) -> SystemSpec:
    """Return a grid of dies with drawn sides, links, HBM and SRAM.

    What feeds the cores is left out: large products reach a share of the peak there.
    """
    base = load_system(BASE)
    rows, columns = _one(rng, ROWS), _one(rng, COLUMNS)
    link = {
        "kind": "torus" if rng.random() < TORUS_SHARE else "mesh",
        "bandwidth_bytes_per_s": _between(rng, BANDWIDTH_BYTES_PER_S),
        "latency_s": _between(rng, LATENCY_S),
        "message_half_bytes": MESSAGE_HALF_BYTES[rng.integers(len(MESSAGE_HALF_BYTES))],
    }
    sram, hbm = base.chip.memories
    chip = base.chip.model_copy(
        update={
            "noc_bytes_per_s": None,
            "memories": (
                sram.model_copy(update={"capacity_bytes": _between(rng, SRAM_BYTES)}),
                hbm.model_copy(update={"bandwidth_bytes_per_s": _between(rng, HBM_BYTES_PER_S)}),
            ),
        }
    )
    levels = tuple(
        level.model_copy(update={**link, "size": size})
        for level, size in zip(base.levels, (columns, rows), strict=True)
    )
    return base.model_copy(
        update={
            "name": f"drawn-{rows}x{columns}",
            "chip": chip,
            "levels": levels,
            "num_devices": rows * columns,
        }
    )


def draw_model(rng: np.random.Generator) -> ModelSpec:
    """Return a dense transformer of drawn width, depth, attention and network."""
    heads, is_gated = _one(rng, HEADS), bool(rng.random() < 0.5)
    is_grouped = bool(rng.random() < 0.5)
    hidden = heads * HEAD_SIZE
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=GROUPED_HEADS if is_grouped else heads,
        head_size=HEAD_SIZE,
        value_head_size=HEAD_SIZE,
    )
    network = FeedForwardSpec(ffn_size=hidden * 11 // 4 if is_gated else hidden * 4, gated=is_gated)
    return ModelSpec(
        name="drawn",
        architecture="drawn",
        hidden_size=hidden,
        vocab_size=_one(rng, VOCABULARIES),
        layer_kinds=(LayerSpec(attention=attention, feed_forward=network),),
        layer_pattern=(0,) * _one(rng, LAYERS),
    )


def configuration(problem: Problem) -> Configuration:
    """Return a problem with its twin on chips that compute in no time."""
    return Configuration(problem, without_computation(problem))


def without_computation(problem: Problem) -> Problem:
    """Return the same problem on chips that compute in no time, without launches and jitter."""
    chip = problem.system.chip
    faster = chip.model_copy(
        update={
            "noc_bytes_per_s": None,
            "matmul_flops_per_s": _scaled(chip.matmul_flops_per_s),
            "best_matmul_flops_per_s": _scaled(chip.best_matmul_flops_per_s),
            "vector_flops_per_s": _scaled(chip.vector_flops_per_s),
            "memories": tuple(
                memory.model_copy(
                    update={
                        "bandwidth_bytes_per_s": (memory.bandwidth_bytes_per_s or 1.0) * INSTANT
                    }
                )
                for memory in chip.memories
            ),
        }
    )
    constants = replace(problem.calibration, launch_s=0.0, jitter=0.0, overlap_slowdown=0.0)
    system = problem.system.model_copy(update={"chip": faster})
    return replace(problem, system=system, calibration=constants)


def _scaled(rates: Mapping[DType, float]) -> dict[DType, float]:
    """Return rates of a chip that computes in no time."""
    return {name: rate * INSTANT for name, rate in rates.items()}


def _one(rng: np.random.Generator, values: tuple[int, ...]) -> int:
    """Return one of some values, each as likely."""
    return values[int(rng.integers(len(values)))]


def _between(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """Return a number between two limits; its logarithm is evenly spread."""
    low, high = np.log(limits)
    return float(np.exp(rng.uniform(low, high)))
